"""The users of a state folder: whose processes are counted at its gate, and who may be asked through its node.

A folder that only its owner can write to has one user. One that its group can write to has the members of that group;
one that everyone can write to has everyone. Root is a user of none of them unless it owns the folder: root can do
everything anyway, and does not for that run agents.
"""

from __future__ import annotations

import os

EVERYONE = "*"


class StoreUsers:
    """The users of one folder ("" for none: the caller's own), and those that are named besides; `*` is everyone."""

    def __init__(self, folder: str, named: tuple[str, ...] = ()) -> None:
        self._everyone = EVERYONE in named
        self._uids = {os.geteuid()}
        self._uids.update(uid for name in named if (uid := _uid_of(name)) is not None)
        self._group: int | None = None
        self._members: dict[int, bool] = {}
        try:
            found = os.stat(folder) if folder else None
        except OSError:
            return  # it is not there yet: it will be the caller's own
        if found is not None:
            self._uids.add(found.st_uid)
            self._everyone = self._everyone or bool(found.st_mode & 0o002)
            self._group = found.st_gid if found.st_mode & 0o020 else None

    def __contains__(self, uid: object) -> bool:
        if not isinstance(uid, int):
            return False
        if self._everyone or uid in self._uids:
            return True
        if self._group is None:
            return False
        known = self._members.get(uid)
        if known is None:
            known = self._members[uid] = self._group in groups_of(uid)
        return known

    @property
    def key(self) -> str:
        """What makes two of them the same, for a cache."""
        return f"{self._everyone}|{self._group}|{sorted(self._uids)}"


def _uid_of(name: str) -> int | None:
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def groups_of(uid: int) -> list[int]:
    """The groups of a user; none of one that does not exist."""
    import pwd

    try:
        known = pwd.getpwuid(uid)
        return os.getgrouplist(known.pw_name, known.pw_gid)
    except (KeyError, OSError):
        return []
