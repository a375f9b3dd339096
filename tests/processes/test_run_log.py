"""`fleetgate run --log`: the output is kept in the files of jobs, and shown by `fleetgate logs` (rule R11)."""

from __future__ import annotations

import os
import signal
import stat

import pytest

from fleetgate.jobs import actions, run_outputs
from tests.processes.fleet import FLEETGATE, Fleet, Run

pytestmark = pytest.mark.processes

BOTH = "printf 'one\\ntwo'; echo three >&2; exit 3"


def logs(fleet: Fleet, *words: str) -> Run:
    run = fleet.start([*FLEETGATE, "logs", *words])
    run.wait()
    return run


def test_r11_the_output_passes_and_is_kept_byte_for_byte_and_only_for_its_owner(fleet: Fleet) -> None:
    run = fleet.done("--log", "--name", "review", "--", "sh", "-c", BOTH)
    assert run.code == 3
    shown = logs(fleet, "review")
    assert shown.out == run.out == "one\ntwo"
    assert shown.err == run.err == "three\n"
    marked = logs(fleet, "--marked", "review").out.splitlines()
    assert marked[0].endswith("run began: sh -c " + BOTH)
    assert marked[-1].endswith("run ended: exit code 3")
    (ident,) = run_outputs.every(str(fleet.home))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (fleet.home / "jobs" / ident).iterdir()}
    assert modes == {0o600}


def test_r11_a_running_run_is_followed_to_its_end_and_the_newest_of_a_name_is_meant(fleet: Fleet) -> None:
    assert fleet.done("--log", "--name", "same", "--", "echo", "old").code == 0
    go = fleet.folder / "go"
    fleet.run(
        "--log", "--name", "same", "--", "sh", "-c", f"echo new; while [ ! -e {go} ]; do sleep 0.02; done; echo end"
    )
    fleet.until(lambda: "new" in logs(fleet, "same").out)
    (lease,) = fleet.json("ps")["leases"]
    assert lease["output"] == f"/v1/jobs/{lease['id']}/output"
    following = fleet.start([*FLEETGATE, "logs", "-f", "same"])
    go.touch()
    assert following.wait() == 0
    assert following.out == "new\nend\n"


def test_r11_on_a_terminal_the_agent_sees_a_pipe_and_the_terminal_gets_its_output(fleet: Fleet) -> None:
    script = f"{FLEETGATE[0]} run --log --name tty -- sh -c 'test -t 1 || echo none'"
    run = fleet.start(["script", "-qec", script, "/dev/null"])
    assert run.wait() == 0
    assert "none" in run.out
    assert logs(fleet, "tty").out == "none\n"


def test_r11_what_a_killed_run_printed_is_kept_and_its_output_is_deleted_when_it_is_old(fleet: Fleet) -> None:
    run = fleet.run("--log", "--name", "killed", "--", "sh", "-c", "echo begun; exec sleep 300")
    fleet.until(lambda: "begun" in logs(fleet, "killed").out)
    assert actions.clean_runs(fleet.gate, 1 << 60) == [], "it is running"
    run.signal(signal.SIGKILL)
    (lease,) = fleet.state.leases.values()
    os.kill(int(lease.child.split("|")[3]), signal.SIGKILL)
    assert logs(fleet, "-f", "killed").code == 0, "it has ended, even if its slot is not free yet"
    assert fleet.done("--", "true").code == 0, "it finds the dead one"
    assert fleet.start([*FLEETGATE, "clean"]).wait() == 0
    assert logs(fleet, "killed").out == "begun\n", "it is not old"
    fleet.configure('[jobs]\nkeep = "1ms"\n')
    assert fleet.done("--log", "--name", "next", "--", "true").code == 0
    gone = logs(fleet, "killed")
    assert gone.code == 64
    assert "fleetgate run --log" in gone.err


def test_r11_a_link_in_place_of_the_description_is_not_followed(fleet: Fleet) -> None:
    assert fleet.done("--log", "--name", "mine", "--", "true").code == 0
    (ident,) = run_outputs.every(str(fleet.home))
    about = fleet.home / "jobs" / ident / "run.json"
    about.rename(fleet.folder / "elsewhere.json")
    about.symlink_to(fleet.folder / "elsewhere.json")
    assert run_outputs.every(str(fleet.home)) == {}
