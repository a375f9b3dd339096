"""Which store a URL names, for people; and the folder on this machine for what belongs to it and is not in it."""

from __future__ import annotations

from binascii import crc32

from fleetgate.config.paths import sqlite_folder, state_folder
from fleetgate.log.protocol import StoreError

POSTGRES = "postgresql://"


def shown(url: str) -> str:
    """A store's URL as it may be shown: without a password, wherever in it that is."""
    if not url.startswith(POSTGRES):
        return url
    from fleetgate.log.postgres.url import parse

    return parse(url).shown


def local_folder(url: str) -> str:
    """The folder of the sockets, the jobs' output and the like; "" for a store in memory.

    A SQLite store has them beside it. Each gate in a database has a folder of its own below the state folder, made if
    need be: they must not take each other's turns.
    """
    if not url.startswith(POSTGRES):
        return sqlite_folder(url) or ""
    from fleetgate.log.postgres.url import parse
    from fleetgate.log.store_files import make_folder, make_inner_folder

    address = parse(url)
    place = address.shown.partition("://")[2].rpartition("@")[2]
    state = state_folder()
    folder = f"{state}/stores/{address.namespace}-{crc32(place.encode()):08x}"
    try:
        make_folder(state)
        make_inner_folder(f"{state}/stores")
        make_inner_folder(folder)
    except OSError as error:
        said = f"{error.strerror or error}"
        raise StoreError(
            f"cannot make {folder} ({said}): set FLEETGATE_HOME to a folder that can be written"
        ) from error
    return folder
