"""Network file systems are refused (rule R6), by what the system says is mounted where."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetgate.log.protocol import StoreError
from fleetgate.log.sqlite import filesystems
from fleetgate.log.sqlite.filesystems import kind_in_mount_output, kind_in_mountinfo, refuse_network
from fleetgate.log.sqlite.log import SqliteLog

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:40 / /home rw,relatime shared:9 - nfs4 server:/export/home rw,vers=4.2
41 40 0:41 / /home/me/.local rw - btrfs /dev/sdb rw,subvol=/local
42 27 0:42 / /mnt/with\040space rw - cifs //server/share rw
43 27 0:43 / /mnt/windows rw - 9p C:\134 rw
44 27 0:44 / /mnt/over rw - nfs server:/old rw
45 27 0:45 / /mnt/over rw master:3 propagate_from:2 - tmpfs tmpfs rw
46 27 0:46 / /mnt/ssh rw - fuse.sshfs me@host: rw
47 27 0:47 / /mnt/home rw - virtiofs home rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/fleetgate", "ext4"),
        ("/", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/fleetgate", "nfs4"),
        ("/homes/me", "ext4"),
        ("/home/me/.local/state/fleetgate", "btrfs"),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/windows/x", "9p"),
        ("/mnt/over/x", "tmpfs"),
        ("/mnt/ssh", "fuse.sshfs"),
        ("/mnt/home/x", "virtiofs"),
    ],
)
def test_the_mount_that_holds_a_path_is_found(path: str, kind: str) -> None:
    assert kind_in_mountinfo(MOUNTINFO, path) == kind


def test_what_is_not_listed_is_unknown() -> None:
    assert kind_in_mountinfo("", "/x") == ""
    assert kind_in_mount_output("", "/x") == ""


MOUNT_OUTPUT = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse)
//me@nas/share on /Volumes/share (1) (smbfs, nodev, nosuid, mounted by me)
nas:/export on /Volumes/nfs (nfs)
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/Users/me", "apfs"), ("/Volumes/share (1)/x", "smbfs"), ("/Volumes/nfs/x", "nfs"), ("/Volumes/nfsx", "apfs")],
)
def test_what_mount_prints_on_macos_is_understood(path: str, kind: str) -> None:
    assert kind_in_mount_output(MOUNT_OUTPUT, path) == kind


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "ceph", "glusterfs", "lustre"]
)
def test_R6_a_store_on_a_network_file_system_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(filesystems, "_kind", lambda path: kind)
    with pytest.raises(StoreError) as failure:
        SqliteLog(str(tmp_path / "store"))
    said = str(failure.value)
    assert f"{tmp_path}/store is on a network file system ({kind})" in said
    assert "FLEETGATE_STORE" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["", "ext4", "9p", "virtiofs", "tmpfs", "overlay", "zfs", "fuseblk"])
def test_R6_other_file_systems_are_allowed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(filesystems, "_kind", lambda path: kind)
    refuse_network("/somewhere")


def test_the_mount_is_looked_up_behind_links_and_for_folders_that_do_not_exist_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def kind(path: str) -> str:
        asked.append(path)
        return ""

    monkeypatch.setattr(filesystems, "_kind", kind)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    refuse_network(str(tmp_path / "link" / "not" / "yet"))
    assert asked == [str(tmp_path.resolve() / "real" / "not" / "yet")]


def test_this_machine_s_own_folders_are_looked_up_without_failing(tmp_path: Path) -> None:
    refuse_network(str(tmp_path / "a" / "b"))
    refuse_network("/dev/shm/fleetgate-does-not-exist")
    assert filesystems._kind("/proc/self") in ("proc", "")
