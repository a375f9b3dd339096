"""Which file systems cannot hold a store (rule R6).

SQLite's write-ahead log needs memory that all its processes share, and locks that work; over a network neither
can be relied on, and the damage shows only later. So a network file system is refused before anything is
written. What is unknown is allowed: 9p and virtiofs, by which virtual machines and WSL see their host's disk.
"""

from __future__ import annotations

import os
import sys

from fleetgate.log.protocol import StoreError

NETWORK = frozenset(
    """
    afp afpfs afs auristorfs beegfs ceph cifs coda davfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs3 nfs4 ocfs2 orangefs
    panfs pvfs2 smb2 smb3 smbfs webdav wekafs
    fuse.ceph fuse.ceph-fuse fuse.curlftpfs fuse.cvmfs2 fuse.davfs2 fuse.gcsfuse fuse.glusterfs fuse.goofys
    fuse.gvfsd-fuse fuse.juicefs fuse.moosefs fuse.mount-s3 fuse.rclone fuse.s3fs fuse.seaweedfs fuse.sshfs
    """.split()  # noqa: SIM905
)


def refuse_network(folder: str) -> None:
    """Raise StoreError if `folder`, which need not exist yet, is on a network file system."""
    kind = _kind(os.path.realpath(folder))
    if kind in NETWORK:
        raise StoreError(
            f"{folder} is on a network file system ({kind}), where the store would not be safe: set FLEETGATE_STORE "
            "to a folder on a local disk, for example FLEETGATE_STORE=sqlite:///var/tmp/fleetgate"
        )


def kind_in_mountinfo(mountinfo: str, path: str) -> str:
    """The type of the file system that holds `path` (absolute, no links), from Linux's mountinfo; "" if unknown."""
    found, longest = "", 0
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if len(fields) < 5:
            continue
        point = _unescaped(fields[4])
        # What was mounted later hides what was mounted there before: hence not just "longer".
        if _holds(point, path) and len(point) >= longest:
            found, longest = kinds[0], len(point)
    return found


def kind_in_mount_output(output: str, path: str) -> str:
    """The same from what `mount` prints on macOS: `//me@host/share on /Volumes/share (smbfs, nodev)`."""
    found, longest = "", 0
    for line in output.splitlines():
        left, _, options = line.rpartition(" (")
        _, _, point = left.partition(" on ")
        if point and _holds(point, path) and len(point) >= longest:
            found, longest = options.rstrip(")").split(",")[0], len(point)
    return found


def mounted_kind(path: str) -> str:
    """The same by Linux's own list."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return kind_in_mountinfo(file.read(), path)
    except OSError:
        return ""


def _kind(path: str) -> str:
    device = _device(path)
    if sys.platform == "darwin":
        if device in (_device("/"), _device("/System/Volumes/Data")):
            return ""
        import subprocess

        listed = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False, timeout=5)
        return kind_in_mount_output(listed.stdout, path)
    if os.major(device):
        return ""  # a block device: local, and the list of mounts need not be read
    return mounted_kind(path)


def _device(path: str) -> int:
    """The device of `path`, or of the nearest folder above it that exists."""
    while True:
        try:
            return os.stat(path).st_dev
        except OSError:
            above = os.path.dirname(path)
            if above == path:
                return 0
            path = above


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point if point.endswith("/") else point + "/")


def _unescaped(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
