"""Where the service of a state folder answers: a small file, for `headgate open` and `config show` (SPEC H6)."""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct

from headgate.gate import processes
from headgate.log.files import make_file


class Address(Struct):
    url: str
    host: str
    port: int
    process: str
    started_at: str


def address_path(folder: str) -> str:
    return f"{folder}/serve.json"


def write_address(folder: str, address: Address) -> None:
    path = address_path(folder)
    own = f"{path}.{os.getpid()}"
    fd = make_file(own, exclusive=False, like=folder)
    try:
        os.ftruncate(fd, 0)
        os.write(fd, msgspec.json.encode(address) + b"\n")
    finally:
        os.close(fd)
    os.rename(own, path)


def read_address(folder: str) -> Address | None:
    """The service that runs; None when there is none, or its process is gone."""
    try:
        with open(address_path(folder), "rb") as file:
            address = msgspec.json.decode(file.read(65_536), type=Address)
    except (OSError, msgspec.MsgspecError):
        return None
    return None if processes.is_gone(address.process) else address


def remove_address(folder: str, process: str) -> None:
    """When the service ends; not that of another that has started since."""
    address = read_address(folder)
    if address is not None and address.process == process:
        try:
            os.unlink(address_path(folder))
        except OSError:
            pass
