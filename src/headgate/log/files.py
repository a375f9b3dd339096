"""Making a store's folders and files, with the owner and the rights that the folder asks for.

A folder that Headgate makes is private. A folder that is writable for its group is shared by that group, so its
files are too. What root makes in somebody's folder belongs to that somebody, who could not use it otherwise.
"""

from __future__ import annotations

import os


def only_writer(folder: str) -> int | None:
    """The user who alone (beside root) can write to a store's folder; None where others can, too."""
    for path in (f"{folder}/headgate.db", folder):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            continue
        if found.st_mode & 0o022:
            return None
        if path == folder:
            return found.st_uid
    return os.geteuid()  # there is none yet: it will be ours


def make_folder(path: str) -> None:
    """Make the store's folder, for its owner only; one that exists stays as it is."""
    if not os.path.isdir(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise


def make_inner_folder(path: str) -> None:
    """Make a folder inside the store's folder."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _adopt(fd, os.path.dirname(path), 0o100)
    finally:
        os.close(fd)


def make_file(path: str, *, exclusive: bool, like: str | None = None) -> int:
    """Open a file for reading and writing that is made if need be; `like` is the store's folder."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
    fd = os.open(path, flags, 0o600)
    try:
        _adopt(fd, like or os.path.dirname(path), 0)
    except PermissionError:
        pass  # somebody else made it first, and set its rights
    except BaseException:
        os.close(fd)
        raise
    return fd


def sync_folder(path: str) -> None:
    """Make the names in a folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _adopt(fd: int, folder: str, execute: int) -> None:
    """Give an open file the rights and, where we may, the owner that `folder` asks for."""
    owner = os.stat(folder)
    mode = 0o600 | execute
    if owner.st_mode & 0o020:
        mode |= (0o600 | execute) >> 3
    os.fchmod(fd, mode)
    if os.geteuid() == 0 and (owner.st_uid or owner.st_gid):
        os.fchown(fd, owner.st_uid, owner.st_gid)
