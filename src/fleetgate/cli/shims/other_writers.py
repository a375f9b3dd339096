"""Who besides this user and root can change a file or a folder, or what a path leads to."""

from __future__ import annotations

import os
import stat


def other_writer(path: str) -> str:
    """Why another user could change what this path leads to, as a sentence; "" where none could.

    Every folder on the way counts, with and without the links in it. In a folder with the sticky bit (`/tmp`) others
    cannot replace what is there already.
    """
    for part in dict.fromkeys((*_parts(os.path.abspath(path)), *_parts(os.path.realpath(path)))):
        try:
            found = os.lstat(part)
        except OSError:
            continue  # not there yet
        if found.st_uid not in (0, os.geteuid()):
            return f"{part} belongs to user {found.st_uid}"
        if stat.S_ISLNK(found.st_mode):
            continue
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX and part != path
        if not is_sticky and (who := _writers(found)):
            return f"{who} can write to {part} (`chmod go-w {part}` mends that)"
    return ""


def world_writer(path: str) -> str:
    """Whether every user can replace the program at this path, as a sentence; "" if not.

    In a folder with the sticky bit others cannot replace it, but they can when it is gone for a moment: its own folder
    must not be one.
    """
    for place in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        for part in _parts(place):
            mode = os.stat(part).st_mode
            is_sticky = mode & stat.S_ISVTX and part != os.path.dirname(place)
            if mode & stat.S_IWOTH and not is_sticky:
                return f"every user can write to {part}"
    return ""


def _parts(path: str) -> list[str]:
    parts = [path]
    while os.path.dirname(parts[-1]) != parts[-1]:
        parts.append(os.path.dirname(parts[-1]))
    return parts[::-1]


def _writers(found: os.stat_result) -> str:
    if found.st_mode & stat.S_IWOTH:
        return "every user"
    return "its group" if found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid) else ""


def _is_private_group(gid: int) -> bool:
    """Whether a group is this user's alone: the system's own, or the one that Linux makes for each user."""
    import grp
    import pwd

    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}
