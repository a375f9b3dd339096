"""How many more agents fit into memory (rule C7), with made-up machines and containers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fleetgate.gate.liveness import free_memory

GIB = 1 << 30
MIB = 1 << 20

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Machine:
    """A /proc and a /sys/fs/cgroup under a folder of the test."""

    def __init__(self, folder: Path, available: int = 16 * GIB) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()
        self.write(self.proc / "meminfo", f"MemTotal: 99999999 kB\nMemAvailable:   {available // 1024} kB\n")

    def write(self, path: Path, text: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def mounts(self, *lines: str) -> None:
        self.write(self.proc / "self" / "mountinfo", "\n".join(lines))

    def member_of(self, *lines: str) -> None:
        self.write(self.proc / "self" / "cgroup", "\n".join(lines))

    def v2(self, path: str, limit: object, used: int = 0, cache: int = 0) -> None:
        group = self.cgroups / path
        self.write(group / "memory.max", limit)
        self.write(group / "memory.current", used)
        self.write(group / "memory.stat", f"anon 1\nfile 2\ninactive_file {cache}\nactive_file 7")

    def v1(self, path: str, limit: int, used: int = 0, cache: int = 0) -> None:
        group = self.cgroups / path
        self.write(group / "memory.limit_in_bytes", limit)
        self.write(group / "memory.usage_in_bytes", used)
        self.write(group / "memory.stat", f"inactive_file 1\ntotal_inactive_file {cache}")

    def mounted(self, kind: str, root: str = "/", options: str = "rw") -> str:
        return f"31 23 0:28 {root} {self.cgroups} rw,relatime shared:9 - {kind} {kind} {options}"

    def available(self) -> int | None:
        return free_memory.available_bytes(str(self.proc))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@linux
def test_c7_without_a_limit_it_is_what_the_kernel_calls_available(machine: Machine) -> None:
    assert machine.available() == 16 * GIB
    machine.mounts(machine.mounted("cgroup2"))
    machine.member_of("0::/user.slice")
    machine.v2("user.slice", "max", 5 * GIB)
    assert machine.available() == 16 * GIB


@linux
def test_c7_the_limit_of_a_container_bounds_it(machine: Machine) -> None:
    machine.mounts(machine.mounted("cgroup2"))
    machine.member_of("0::/")  # a container that sees its own cgroup as the root
    machine.v2("", 4 * GIB, 3 * GIB)
    assert machine.available() == GIB


@linux
def test_c7_file_cache_that_can_be_dropped_counts_as_available(machine: Machine) -> None:
    machine.mounts(machine.mounted("cgroup2"))
    machine.member_of("0::/")
    machine.v2("", 4 * GIB, 3 * GIB, cache=2 * GIB)
    assert machine.available() == 3 * GIB


@linux
def test_c7_the_narrowest_of_all_cgroups_above_decides(machine: Machine) -> None:
    machine.mounts(machine.mounted("cgroup2"))
    machine.member_of("0::/user.slice/session.scope/agents")
    machine.v2("user.slice/session.scope/agents", 9 * GIB, GIB)
    machine.v2("user.slice/session.scope", "max", GIB)
    machine.v2("user.slice", 6 * GIB, 4 * GIB)
    machine.v2("other.slice", GIB, GIB)
    assert machine.available() == 2 * GIB


@linux
def test_c7_a_machine_with_less_than_the_containers_limit_decides(machine: Machine) -> None:
    machine.mounts(machine.mounted("cgroup2"))
    machine.member_of("0::/")
    machine.v2("", 64 * GIB, GIB)
    assert machine.available() == 16 * GIB


@linux
def test_c7_the_first_version_of_cgroups_is_read_too(machine: Machine) -> None:
    machine.mounts(machine.mounted("cgroup", options="rw,memory"), "32 31 0:1 / /none rw - cgroup cgroup rw,cpu")
    machine.member_of("5:cpu:/", "4:memory,hugetlb:/docker/abc", "0::/")
    machine.v1("", 9223372036854771712, 9 * GIB)
    machine.v1("docker/abc", 3 * GIB, 2 * GIB, cache=512 * MIB)
    assert machine.available() == 1536 * MIB


@linux
def test_c7_a_container_that_mounts_only_its_part_of_the_tree(machine: Machine) -> None:
    machine.mounts(machine.mounted("cgroup", root="/docker/abc", options="rw,memory"))
    machine.member_of("4:memory:/docker/abc/agents")
    machine.v1("agents", 3 * GIB, GIB)
    machine.v1("", 2 * GIB, GIB)
    assert machine.available() == GIB


@linux
def test_c7_a_mount_that_does_not_fit_our_cgroup_is_taken_for_it(machine: Machine) -> None:
    machine.mounts(machine.mounted("cgroup2", root="/kubepods/pod1"))
    machine.member_of("0::/somewhere/else")
    machine.v2("", 2 * GIB, GIB)
    assert machine.available() == GIB


@linux
def test_c7_a_cgroup_over_its_limit_has_nothing_left(machine: Machine) -> None:
    machine.mounts(machine.mounted("cgroup2"))
    machine.member_of("0::/")
    machine.v2("", GIB, 2 * GIB)
    assert machine.available() == 0


@linux
def test_c7_a_mount_point_with_a_blank_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    machine = Machine(tmp_path / "a b")
    machine.mounts(machine.mounted("cgroup2").replace(" b/", "\\040b/"))
    machine.member_of("0::/")
    machine.v2("", 2 * GIB, GIB)
    assert machine.available() == GIB


@linux
@pytest.mark.parametrize(
    "nonsense", ["", "\0", "a b c", "0:", "::::", "1 2 3 4 5 - ", "MemAvailable: lots kB", "\xff" * 9]
)
def test_q1_files_that_make_no_sense_are_passed_over(machine: Machine, nonsense: str) -> None:
    machine.mounts(nonsense, machine.mounted("cgroup2"))
    machine.member_of(nonsense, "0::/")
    machine.v2("", nonsense, 1)
    assert machine.available() == 16 * GIB
    machine.write(machine.proc / "meminfo", nonsense)
    assert machine.available() is None
    machine.v2("", 2 * GIB, GIB)
    assert machine.available() == GIB


@linux
def test_c7_here_and_now_there_is_an_answer() -> None:
    available = free_memory.available_bytes()
    assert available is not None
    assert 0 < available < 1 << 50


@pytest.mark.parametrize(
    ("available", "reserve", "per_agent", "room"),
    [
        (8 * GIB, 6 * GIB, 512 * MIB, 4),
        (8 * GIB - 1, 6 * GIB, 512 * MIB, 3),
        (6 * GIB, 6 * GIB, 512 * MIB, 0),
        (6 * GIB + 512 * MIB, 6 * GIB, 512 * MIB, 1),
        (1 * GIB, 6 * GIB, 512 * MIB, 0),
        (1 * GIB, 0, 0, 1 * GIB),
        (None, 6 * GIB, 512 * MIB, None),
    ],
)
def test_c7_room_is_what_is_left_beside_the_reserve_in_whole_agents(
    monkeypatch: pytest.MonkeyPatch, available: int | None, reserve: int, per_agent: int, room: int | None
) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: available)
    assert free_memory.room(reserve, per_agent) == room


def test_c7_psutil_is_asked_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(sys, "platform", "darwin")
    asked = free_memory.available_bytes()
    assert asked is not None
    assert 0 < asked <= psutil.virtual_memory().total
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert free_memory.available_bytes() is None
