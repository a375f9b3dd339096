"""Snapshot files of a SQLite store: `snapshots/<commit>-<id>-<checksum>.json`.

A file is complete and on disk before its name appears, and the name says what it must contain; so a pointer
that is committed afterwards never shows half a snapshot, nor another's. Two processes that save the same commit
in different words write two files.
"""

from __future__ import annotations

import os
from zlib import crc32

from fleetgate.log.protocol import Position
from fleetgate.log.store_files import make_file, make_inner_folder, remove_file, sync_folder, write_all


def write(folder: str, data: bytes, position: Position) -> int:
    """Put a snapshot's file in its place; return its checksum."""
    checksum = crc32(data)
    make_inner_folder(folder)
    path = os.path.join(folder, _name(position.commit, position.id, checksum))
    aside = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        fd = make_file(aside, exclusive=True, like=os.path.dirname(folder))
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(aside, path)
    except BaseException:
        remove_file(aside)
        raise
    sync_folder(folder)
    return checksum


def load(folder: str, commit: int, id: str, checksum: int) -> bytes | None:
    """A snapshot's data, or None if its file is missing or damaged."""
    try:
        with open(os.path.join(folder, _name(commit, id, checksum)), "rb") as file:
            data = file.read()
    except OSError:
        return None
    return data if crc32(data) == checksum else None


def remove(folder: str, position: Position, checksum: int) -> None:
    """Delete a snapshot's file to which nothing points."""
    remove_file(os.path.join(folder, _name(position.commit, position.id, checksum)))


def discard(folder: str, before: int) -> None:
    """Delete the snapshots of commits before `before`, and what is left of attempts to write one."""
    for name in os.listdir(folder):
        commit = name.partition("-")[0]
        if commit.isdecimal() and int(commit) < before:
            remove_file(os.path.join(folder, name))


def _name(commit: int, id: str, checksum: int) -> str:
    return f"{commit}-{id}-{checksum:08x}.json"
