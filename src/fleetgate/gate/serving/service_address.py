"""The address file of a service, `serve.json` in the state folder, for `fleetgate open` and `config show`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fleetgate.core.errors import FleetgateError
from fleetgate.gate.liveness import process_identity
from fleetgate.log.store_files import NotTrusted, only_writer, read_trusted, remove_file, write_own


class BadAddress(FleetgateError):
    """The address of the service may have been written by another user."""

    exit_code = 69


class ServiceAddress(Struct):
    """The content of the file."""

    url: str
    host: str
    port: int
    process: str
    started_at: str


def address_path(folder: str) -> str:
    return f"{folder}/serve.json"


def write_address(folder: str, address: ServiceAddress) -> None:
    mode = 0o600 if only_writer(folder) is not None else 0o640
    write_own(address_path(folder), msgspec.json.encode(address) + b"\n", mode)


def read_address(folder: str) -> ServiceAddress | None:
    """The running service; None when there is none, or its process is gone.

    Tokens and keys are sent to this address. BadAddress where another user than this one, root and the folder's owner
    could have written it.
    """
    path = address_path(folder)
    try:
        address = msgspec.json.decode(read_trusted(path, folder), type=ServiceAddress)
    except NotTrusted as error:
        raise BadAddress(
            f"the service's address in {path} is not used: {error}. Remove the file, and start `fleetgate serve` again"
        ) from error
    except (OSError, msgspec.MsgspecError):
        return None
    return None if process_identity.is_gone(address.process) else address


def remove_address(folder: str, process: str) -> None:
    """Remove the address when the service stops, unless another service has written its own since."""
    try:
        address = read_address(folder)
    except BadAddress:
        return
    if address is not None and address.process == process:
        remove_file(address_path(folder))
