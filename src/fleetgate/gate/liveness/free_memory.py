"""How many more agents fit into memory (rule C7, `host = "auto"`).

Available memory is what the kernel could give without swapping, and in a container no more than is left under the
limit of any cgroup above this process. File cache that the kernel would drop counts as available: otherwise a machine
that has read a large repository would look full. Load average is never used.
"""

from __future__ import annotations

import os
import sys

from fleetgate.gate.liveness.process_identity import psutil_or_none, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# In each version of cgroups: the limit, what is used, and the reclaimable part of that in memory.stat.
_FILES = {
    "cgroup2": ("memory.max", "memory.current", "inactive_file"),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def room(reserve_bytes: int, per_agent_bytes: int) -> int | None:
    """How many more agents fit beside the reserve; None if that is unknown."""
    free = available_bytes()
    return None if free is None else max(0, (free - reserve_bytes) // max(1, per_agent_bytes))


def available_bytes(proc: str = "/proc") -> int | None:
    """Memory that new processes here could use."""
    if sys.platform != "linux":
        return _ask_psutil()
    machine = meminfo_bytes(_text(f"{proc}/meminfo"), "MemAvailable")
    limits = [left for folder, kind in cgroup_folders(proc) if (left := cgroup_left(folder, kind)) is not None]
    return min(limits, default=None) if machine is None else min([machine, *limits])


def total_bytes(proc: str = "/proc") -> int | None:
    """The memory of this machine, or of the cgroup that limits us."""
    if sys.platform != "linux":
        psutil = psutil_or_none()
        return None if psutil is None else int(psutil.virtual_memory().total)
    texts = [_text(f"{folder}/{_FILES[kind][0]}").strip() for folder, kind in cgroup_folders(proc)]
    limits = [int(text) for text in texts if text.isdecimal()]
    machine = meminfo_bytes(_text(f"{proc}/meminfo"), "MemTotal")
    return min(limits, default=None) if machine is None else min([machine, *limits])


def meminfo_bytes(text: str, field: str) -> int | None:
    """A field of /proc/meminfo in bytes."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            number, _, unit = value.strip().partition(" ")
            return int(number) * (1024 if unit == "kB" else 1) if number.isdecimal() else None
    return None


def cgroup_folders(proc: str = "/proc") -> Iterator[tuple[str, str]]:
    """The folders of our memory cgroup and all that is above it, each with its kind.

    /proc/self/cgroup names the cgroup from the root of the hierarchy; mountinfo says which part of that is
    mounted where. In a container the two may not fit together: then the mount itself is our cgroup.
    """
    ours = dict(_own_cgroups(_text(f"{proc}/self/cgroup")))
    for kind, root, mount in _cgroup_mounts(_text(f"{proc}/self/mountinfo")):
        path = ours.get(kind)
        if path is None:
            continue
        inside = os.path.relpath(path, root) if os.path.commonpath((path, root)) == root else "."
        folder = os.path.normpath(os.path.join(mount, inside))
        while folder != mount and folder.startswith(mount):
            yield folder, kind
            folder = os.path.dirname(folder)
        yield mount, kind


def cgroup_left(folder: str, kind: str) -> int | None:
    """What is left under one cgroup's limit, in bytes; None when it has none or cannot be read."""
    limit_file, used_file, reclaimable = _FILES[kind]
    limit, used = _text(f"{folder}/{limit_file}").strip(), _text(f"{folder}/{used_file}").strip()
    if not limit.isdecimal() or not used.isdecimal():
        return None  # "max", or the root, which has no such files
    cache = 0
    for line in _text(f"{folder}/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == reclaimable and value.isdecimal():
            cache = int(value)
    return max(0, int(limit) - int(used) + min(cache, int(used)))


def _own_cgroups(text: str) -> Iterator[tuple[str, str]]:
    """The kind and path of each cgroup that can limit memory, from /proc/self/cgroup."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            yield "cgroup2", os.path.normpath(path)
        elif "memory" in controllers.split(","):
            yield "cgroup", os.path.normpath(path)


def _cgroup_mounts(text: str) -> Iterator[tuple[str, str, str]]:
    """The kind, root and mount point of each mounted hierarchy that can limit memory, from mountinfo."""
    for line in text.splitlines():
        mounted, _, source = line.partition(" - ")
        fields, types = mounted.split(" "), source.split(" ")
        if len(fields) < 5 or len(types) < 3:
            continue
        kind, options = types[0], types[2].split(",")
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options):
            yield kind, os.path.normpath(_unescape(fields[3])), os.path.normpath(_unescape(fields[4]))


def _unescape(field: str) -> str:
    """Undo the octal escapes of mountinfo. As log/sqlite/filesystems.py does, which takes longer to load than this."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def _text(path: str) -> str:
    """A file's text; nothing if there is no such file, or it cannot be read."""
    try:
        return os.fsdecode(read(path))
    except OSError:
        return ""


def _ask_psutil() -> int | None:
    psutil = psutil_or_none()
    return None if psutil is None else int(psutil.virtual_memory().available)
