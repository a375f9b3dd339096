"""Creation of a store's folders and files, with the owner and permissions that fit the folder.

A folder that Fleetgate creates is private. A folder that its group may write to is shared by that group, and so are its
files. A file that root creates in another user's folder belongs to that user, who could not use it otherwise.
"""

from __future__ import annotations

import os
import stat


def only_writer(folder: str) -> int | None:
    """The user who alone (beside root) can write to a store's folder; None where others can, too."""
    for path in (f"{folder}/fleetgate.db", folder):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            continue
        if found.st_mode & 0o022:
            return None
        if path == folder:
            return found.st_uid
    return os.geteuid()  # there is none yet: it will be ours


class NotTrusted(OSError):
    """A file that another user could have made or changed."""


def read_trusted(path: str, folder: str, *, secret: bool = False, most: int = 65_536) -> bytes:
    """A file of a store's folder that is acted on: made by this user, root or the folder's owner, changed by no other.

    A `secret` must be unreadable for others, too, and the folder's owner counts only where no one else can write to the
    folder. There a link is the owner's own, too; elsewhere none is followed. NotTrusted says what is wrong with it.
    """
    alone = only_writer(folder)
    links = os.O_NOFOLLOW if alone is None else 0
    fd = os.open(path, os.O_RDONLY | links | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        owner = alone if secret else os.stat(folder).st_uid
        if found.st_uid not in (os.geteuid(), 0, owner):
            raise NotTrusted(f"it belongs to user {found.st_uid}, who could have put it there")
        if not stat.S_ISREG(found.st_mode) or (alone is None and found.st_nlink != 1):
            raise NotTrusted("it is not a file with one name")
        if found.st_mode & (0o077 if secret else 0o022):
            what = "read or change" if secret else "change"
            raise NotTrusted(f"other users can {what} it; `chmod {'600' if secret else 'go-w'} {path}` mends that")
        return os.read(fd, most)
    finally:
        os.close(fd)


def write_own(path: str, data: bytes, mode: int) -> None:
    """Put a file in place in one step: this user's, with exactly these rights, whatever lay there."""
    draft = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        write_all(fd, data)
        os.fsync(fd)
        os.rename(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it: on a disk that is nearly full, one call writes a part, and only the next one fails."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


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
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise  # a link, which another user may have made
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _adopt(fd, os.path.dirname(path), 0o100)
    finally:
        os.close(fd)


def make_file(path: str, *, exclusive: bool, like: str | None = None) -> int:
    """Open a file for reading and writing that is made if need be; `like` is the store's folder."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
    shared = only_writer(like or os.path.dirname(path)) is None
    fd = os.open(path, flags | (os.O_NOFOLLOW if shared else 0), 0o600)
    try:
        if shared and os.fstat(fd).st_nlink > 1:
            from errno import EEXIST

            raise FileExistsError(EEXIST, "it has another name, which another user may have given it", path)
        _adopt(fd, like or os.path.dirname(path), 0)
    except PermissionError:
        pass  # another process made it first, and set its rights
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove_file(path: str) -> bool:
    """Remove a file, if that can be done; whether it was."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


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
