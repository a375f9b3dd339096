"""Durable jobs and workers (rules J1-J5): real processes, a real store, real kill -9."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep, time

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.gate.wakeup import mailbox
from fleetgate.jobs import job_store, output_files
from fleetgate.jobs.output_files import OutputReader
from tests.processes.fleet import FLEETGATE, Fleet, Run, children_of, is_alive, kill_if_there
from tests.processes.job_fleet import Jobs, processes_of

pytestmark = pytest.mark.processes

OPUS, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6"
HOST_3 = "[agents]\nhost = 3\n"


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with Fleet(HOST_3) as fleet:
        fleet.slots = 3
        yield Jobs(fleet)


# The line.


def test_j2_of_six_jobs_at_a_cap_of_three_three_run_at_once_and_the_fourth_has_position_one(jobs: Jobs):
    fleet = jobs.fleet
    may_end = fleet.folder / "may_end"
    first = jobs.many([fleet.sleeper(f"j{number}", may_end) for number in range(3)])
    jobs.worker(6)
    fleet.until(lambda: all(jobs.state(ident) == "running" for ident in first), what="three that run")
    told = json.loads(jobs.cli("submit", "--json", "--", *fleet.sleeper("j3", 0.2)).out)
    assert (told["state"], told["position"], told["reason"]["code"]) == ("queued", 1, "concurrency_cap")
    rest = [told["id"], *jobs.many([fleet.sleeper(f"j{number}", 0.2) for number in (4, 5)])]
    may_end.touch()
    for ident in [*first, *rest]:
        assert jobs.ended(ident).state == "succeeded"
    assert fleet.most_at_once() <= 3
    assert sorted(life.name for life in fleet.lives()) == [f"j{number}" for number in range(6)]
    assert fleet.is_empty(), fleet.dump()


def test_j2_a_job_and_a_run_stand_in_one_line_the_older_first(jobs: Jobs):
    fleet = jobs.fleet
    busy = [fleet.occupy() for _ in range(3)]
    job = jobs.quickly(*fleet.sleeper("job", 0))
    jobs.worker(1)
    fleet.until(lambda: any(not ticket.away for ticket in fleet.state.tickets.values()), what="an offer")
    run = fleet.waiting("--", *fleet.sleeper("run", 0))
    fleet.free(busy[0])
    jobs.ended(job)
    run.wait()
    assert [name for name, _, _ in fleet.notes("start")] == ["job", "run"]


def test_a6_without_a_worker_a_job_says_how_to_start_one(jobs: Jobs):
    run = jobs.cli("submit", "--", "true")
    assert run.err.startswith("fleetgate: queued, position 1 of 1 for host:")
    assert run.err.endswith(": no worker is running that could take it; start one with `fleetgate worker`\n")
    assert jobs.cli("jobs").out.split()[6:12] == [run.out.strip(), "queued", "1", "of", "1", "true"]
    assert "no worker is running" in jobs.cli("jobs").out


def test_j1_with_an_idle_worker_submit_tells_that_the_job_runs(jobs: Jobs):
    jobs.worker(1)
    jobs.ended(jobs.quickly("true"))
    assert json.loads(jobs.cli("submit", "--json", "--", "sleep", "5").out)["state"] == "running"


def test_j2_a_worker_takes_only_what_it_is_for(jobs: Jobs):
    other = jobs.quickly("true", project="red")
    wrong = jobs.quickly("true", project="blue", models=("openai/gpt-5",))
    right = jobs.quickly("true", project="blue", models=(SONNET,))
    jobs.worker(2, "--project", "blue", "--models", "anthropic/*")
    assert jobs.ended(right).state == "succeeded"
    assert (jobs.state(other), jobs.state(wrong)) == ("queued", "queued")


# Submitting.


def test_j1_the_job_is_on_disk_before_its_id_is_printed(jobs: Jobs):
    jobs.submit("--", "true")  # the store is there
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed, which tells what is written when")
    trace = jobs.fleet.folder / "trace"
    command = ["strace", "-f", "-s", "100", "-e", "trace=write,fsync,fdatasync,pwrite64", "-o", str(trace)]
    run = jobs.fleet.start([*command, *FLEETGATE, "submit", "--", "true"])
    if run.wait() != 0 and "ptrace" in run.err:
        pytest.skip("strace may not trace here, which tells what is written when")
    ident = run.out.strip()
    lines = trace.read_text().splitlines()
    printed = next(at for at, line in enumerate(lines) if f'write(1, "{ident}' in line)
    # All but the mark beside the database, which is no more than a hint (log/sqlite/replacement_mark.py): its line is
    # padded.
    written = [at for at, line in enumerate(lines[:printed]) if "pwrite64(" in line and "      " not in line]
    synced = [at for at, line in enumerate(lines[:printed]) if "fdatasync(" in line or "fsync(" in line]
    assert written, "nothing was written before the id was printed"
    assert synced, "nothing was synced before the id was printed"
    assert not [at for at in written if at > synced[-1]], "written and not synced before the id was printed"


def test_a10_a_key_that_is_in_the_queue_or_running_gives_back_the_same_job(jobs: Jobs):
    first = jobs.submit("--key", "nightly", "--", "true")
    again = jobs.cli("submit", "--key", "nightly", "--json", "--", "false")
    assert json.loads(again.out)["id"] == first
    assert json.loads(again.out)["new"] is False
    held = jobs.fleet.run("--key", "other", "--", *jobs.fleet.sleeper("s", 30))
    jobs.fleet.until(lambda: jobs.fleet.has_started("s"))
    refused = jobs.cli("submit", "--key", "other", "--", "true", code=75)
    assert "'other' is running as" in refused.err
    held.signal(signal.SIGTERM)
    assert len(job_store.every(jobs.fleet.gate.log)) == 1


def test_j1_a_batch_is_submitted_whole_or_not_at_all(jobs: Jobs):
    good = json.dumps({"command": ["true"], "name": "one", "retries": 0, "priority": 5, "env": {"A": "b"}})
    path = jobs.fleet.folder / "jobs.jsonl"
    path.write_text(f'{good}\n\n{good}\n{{"command": ["true"], "prority": 3}}\n')
    bad = jobs.cli("submit", "--batch", str(path), code=64)
    assert "line 4" in bad.err
    assert "'prority': no such key" in bad.err
    assert "nothing was submitted" in bad.err
    assert not job_store.every(jobs.fleet.gate.log)
    path.write_text(f"{good}\n\n{good}\n")
    done = jobs.cli("submit", "--batch", str(path))
    assert len(done.out.split()) == len(job_store.every(jobs.fleet.gate.log)) == 2
    assert "queued 2 jobs" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["submit"], "nothing to run"),
        (["submit", "--cwd", "/nowhere", "--", "true"], "there is no such folder"),
        (["submit", "--retries", "many", "--", "true"], "valid is a whole number from 0"),
        (["submit", "--env", "A", "--", "true"], "valid is NAME=VALUE"),
        (["submit", "--on-lost", "what", "--", "true"], "valid are retry and fail"),
        (["submit", "--retry-on", "rate", "--", "true"], "valid are exit codes"),
        (["submit", "-m", "opus", "--", "true"], "a model is provider/model"),
        (["submit", "--timeout", "0", "--", "true"], "longer than zero"),
        (["submit", "--batch", "/nowhere"], "No such file"),
        (["show", "none"], "no job 'none'"),
        (["logs", "none"], "no job 'none'"),
        (["wait"], "which jobs?"),
        (["worker", "-n", "0"], "valid is a whole number from 1"),
        (["jobs", "--state", "done"], "valid are queued, held"),
    ],
)
def test_q1_bad_input_is_refused_with_what_is_valid_and_changes_nothing(jobs: Jobs, arguments: list[str], says: str):
    assert says in jobs.cli(*arguments, code=64).err
    assert not job_store.every(jobs.fleet.gate.log)


# Ends.


def test_j4_wait_exits_as_the_job_did(jobs: Jobs):
    good, bad = jobs.quickly("true"), jobs.quickly("sh", "-c", "exit 7", retries=0)
    jobs.worker(2)
    assert jobs.cli("wait", good).code == 0
    jobs.cli("wait", "--all", code=0)
    run = jobs.cli("wait", good, bad, code=7)
    assert f"{bad} failed: exit 7" in run.err


def test_j3_a_real_failure_spends_its_retries_with_pauses_and_says_so_once_and_logs_f_follows(jobs: Jobs):
    job = jobs.quickly("sh", "-c", "echo $FLEETGATE_ATTEMPT; exit 3", retries=1, name="flaky")
    follow = jobs.fleet.start([*FLEETGATE, "logs", "-f", job])
    jobs.worker(1)
    jobs.fleet.until(lambda: jobs.view(job).job.failures == 1)
    view = jobs.view(job)
    assert view.reason is not None
    assert view.reason.code == "retry_pause"
    view = jobs.ended(job)
    assert (view.state, view.job.attempt, view.job.exit_code) == ("failed", 2, 3)
    told = [event for _, event in jobs.fleet.events_of(ev.JobEnded)]
    assert [(event.state, event.attempts, event.why) for event in told] == [("failed", 2, "exit 3")]
    assert jobs.cli("logs", "flaky").out == "1\n2\n"
    assert follow.wait() == 0
    assert follow.out == "1\n2\n"


def test_j3_a_failure_that_is_not_to_be_retried_fails_at_once(jobs: Jobs):
    job = jobs.quickly("sh", "-c", "exit 3", retry_on=("4",))
    jobs.worker(1)
    assert (jobs.ended(job).state, jobs.view(job).job.attempt) == ("failed", 1)


def test_q1_what_cannot_be_run_fails_once_and_says_why(jobs: Jobs):
    gone = jobs.fleet.folder / "gone"
    gone.mkdir()
    nowhere = jobs.submit("--cwd", str(gone), "--", "true")
    gone.rmdir()
    missing = jobs.quickly("no-such-program")
    jobs.worker(1)
    assert "cannot enter" in jobs.ended(nowhere).job.why
    view = jobs.ended(missing)
    assert (view.state, view.job.attempt, view.job.exit_code) == ("failed", 1, 127)
    assert "there is no such program" in view.job.why
    assert jobs.fleet.is_empty()


def test_a8_a_job_that_expires_in_the_queue_never_starts_and_is_reported_once(jobs: Jobs):
    job = jobs.quickly(*jobs.fleet.sleeper("never", 0), expires_ms=300)
    jobs.cli("wait", job, code=75)
    assert jobs.state(job) == "expired"
    jobs.worker(1)
    later = jobs.quickly("true")
    jobs.ended(later)
    assert not jobs.fleet.has_started("never")
    assert len(jobs.fleet.events_of(ev.Expired)) == 1
    assert "expired after" in jobs.view(job).job.why


def test_o8_the_name_of_a_job_means_that_job_even_if_the_id_of_another_begins_with_it(jobs: Jobs):
    other = jobs.submit("--", "true")
    named = jobs.submit("--name", other[:4], "--", "true")
    short = jobs.submit("--name", other[:3], "--", "true")
    assert [json.loads(jobs.cli("show", "--json", word).out)["id"] for word in (other[:4], other[:3], other[:5])] == [
        named,
        short,
        other,
    ]
    jobs.cli("show", other[:2], code=64)


def test_j4_cancelling_ends_what_waits_and_what_runs(jobs: Jobs):
    fleet = jobs.fleet
    waits = jobs.quickly("true")
    jobs.cli("cancel", waits)
    runs = jobs.quickly(*fleet.sleeper("runs", 60))
    jobs.worker(1)
    jobs.until(runs, "running")
    fleet.until(lambda: fleet.has_started("runs"))
    child = jobs.child_of(runs)
    assert "is being stopped" in jobs.cli("cancel", runs).out
    jobs.cli("wait", waits, runs, code=130)
    assert not is_alive(child)
    assert (jobs.state(waits), jobs.state(runs)) == ("cancelled", "cancelled")
    assert "has ended: cancelled" in jobs.cli("cancel", runs, code=64).err
    assert fleet.is_empty()


def test_j4_a_finished_job_can_be_run_again_and_deleted(jobs: Jobs):
    flag = jobs.fleet.folder / "flag"
    job = jobs.quickly("test", "-e", str(flag), retries=0)
    worker = jobs.worker(1)
    assert jobs.ended(job).state == "failed"
    flag.touch()
    jobs.cli("retry", job)
    assert jobs.ended(job).state == "succeeded"
    assert "has not ended" not in jobs.cli("retry", job).err
    jobs.ended(job)
    assert "deleted 0 jobs" in jobs.cli("clean").out
    assert "deleted 1 job" in jobs.cli("clean", "--all").out
    jobs.cli("show", job, code=64)
    assert not output_files.files(str(jobs.fleet.home), job)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_j1_timeout_and_silence_end_an_attempt(jobs: Jobs):
    slow = jobs.quickly("sleep", "60", timeout_ms=300, retries=0)
    mute = jobs.quickly("sh", "-c", "echo hello; sleep 60", silence_ms=400, retries=0)
    jobs.worker(2)
    assert "time-out" in jobs.ended(slow).job.why
    view = jobs.ended(mute)
    assert (view.state, view.job.signal) == ("failed", signal.SIGTERM)


def test_j5_a_job_to_be_confirmed_is_held_and_runs_when_approved(jobs: Jobs):
    job = jobs.submit("--confirm", "--name", "careful", "--", *jobs.fleet.sleeper("careful", 0))
    jobs.worker(1)
    view = jobs.until(job, "held")
    assert view.reason is not None
    assert "fleetgate approve" in view.reason.text
    assert not jobs.fleet.state.leases
    jobs.cli("approve", "careful")
    assert jobs.ended(job).state == "succeeded"
    assert len(jobs.fleet.lives()) == 1


# Output.


def test_j4_output_comes_back_byte_for_byte_whatever_it_was(jobs: Jobs):
    raw = b"\xff\xfe no utf-8 \x00\r\n\x0b\x0c\rcarriage\n" + b"x" * 200_000 + b"\nno newline at the end"
    path = jobs.fleet.folder / "raw"
    path.write_bytes(raw)
    job = jobs.quickly("sh", "-c", f"cat {path}; echo oops >&2")
    jobs.worker(1)
    jobs.ended(job)
    printed = jobs.fleet.folder / "printed"
    run = jobs.fleet.start(["sh", "-c", f"exec {FLEETGATE[0]} logs {job} >{printed}"])
    assert (run.wait(), run.err) == (0, "oops\n")
    assert printed.read_bytes() == raw
    marked = jobs.cli("logs", "--marked", "--stream", "err", job)
    assert marked.out.split()[1:] == ["err", "oops"]


def test_j4_output_without_end_is_cut_at_its_beginning_and_costs_nothing_else(jobs: Jobs):
    jobs.fleet.configure(f'{HOST_3}[jobs]\noutput = "1MiB"\n')
    program = "import os\nfor number in range(3000): os.write(1, (b'%07d ' % number) + b'x' * 991 + b'\\n')"
    job = jobs.quickly(sys.executable, "-c", program)
    jobs.worker(1)
    assert jobs.ended(job).state == "succeeded"
    kept = jobs.cli("logs", job).out.splitlines()
    assert kept[-1].startswith("0002999 ")
    numbers = [int(line[:7]) for line in kept]
    assert numbers == list(range(numbers[0], 3000))
    size = sum(Path(path).stat().st_size for path in output_files.files(str(jobs.fleet.home), job))
    assert 500_000 < size <= 1 << 20


def test_j4_a_hundred_megabytes_of_output_cost_neither_the_job_nor_memory_and_the_end_is_kept(jobs: Jobs):
    program = (
        "import os\nfor start in range(0, 1_000_000, 5000):\n"
        "    data = b''.join(b'%09d %s\\n' % (number, b'x' * 89) for number in range(start, start + 5000))\n"
        "    while data: data = data[os.write(1, data):]"
    )
    job = jobs.quickly(sys.executable, "-c", program)
    jobs.worker(1)
    jobs.until(job, "running")
    process = Path(f"/proc/{jobs.process_of(job)}/status")
    most = 0
    while jobs.state(job) == "running":
        try:
            most = max(most, int(process.read_text().partition("VmRSS:")[2].split()[0]))
        except (OSError, IndexError):
            break
        sleep(0.05)
    assert jobs.ended(job, within_s=60).state == "succeeded"
    assert most < 150_000, "KiB of the process that reads it"
    size = sum(Path(path).stat().st_size for path in output_files.files(str(jobs.fleet.home), job))
    assert 48 << 20 <= size <= 64 << 20
    kept = b"".join(
        piece.data for piece in OutputReader(str(jobs.fleet.home), job).read() if piece.mark == output_files.OUT
    )
    numbers = [int(line[:9]) for line in kept.splitlines()[1:]]  # the first may have been cut
    assert numbers == list(range(numbers[0], 1_000_000))


# Limits.


def agent(fleet: Fleet, body: str) -> list[str]:
    """A program called opencode, which prints records."""
    text = f"#!{sys.executable}\nimport json, os, sys\nfrom pathlib import Path\n{body}\n"
    return [fleet.script("opencode", text), "run", "--format", "json", "-m", "{model}", "hi"]


LIMITED = """
data = {"message": "Too Many Requests", "statusCode": 429, "isRetryable": True, "responseHeaders": {"retry-after": "1"}}
limited = {"type": "error", "sessionID": "ses_1", "error": {"name": "APIError", "data": data}}
work = {"type": "text", "sessionID": "ses_1", "part": {"type": "text", "text": "done"}}
def say(record): print(json.dumps(record, separators=(",", ":")), flush=True)
"""


def test_j3_a_job_hit_by_rate_limits_keeps_its_retries_and_its_age_and_ends_on_the_fallback(jobs: Jobs):
    body = LIMITED + (
        f"calls = Path({str(jobs.fleet.folder / 'calls')!r})\n"
        "calls.open('a').write(os.environ['FLEETGATE_MODEL'] + '\\n')\n"
        "number = len(calls.read_text().splitlines())\n"
        "say(limited if number <= 3 else work)\nsys.exit(number <= 3)"
    )
    fleet = jobs.fleet
    job = jobs.quickly(*agent(fleet, body), models=(OPUS, SONNET), retries=0)
    since = fleet.state.tickets[job].since
    jobs.worker(1)
    view = jobs.ended(job)
    assert (view.state, view.job.limits, view.job.failures, view.job.attempt) == ("succeeded", 3, 0, 4)
    assert view.job.since == since
    assert {event.ticket.since for _, event in fleet.events_of(ev.Queued)} == {since}
    models = (fleet.folder / "calls").read_text().split()
    assert models[:2] == [OPUS, SONNET], "the first candidate is backed off, so the next is taken"


def test_r9_a_job_ended_by_a_limit_goes_on_with_its_session_on_the_next_attempt(jobs: Jobs):
    body = LIMITED + (
        f"calls = Path({str(jobs.fleet.folder / 'calls')!r})\n"
        "calls.open('a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "number = len(calls.read_text().splitlines())\n"
        "say(work)\nif number == 1: say(limited)\nsys.exit(number == 1)"
    )
    job = jobs.quickly(*agent(jobs.fleet, body), models=(SONNET,), retries=0, session="issue-12")
    jobs.worker(1)
    view = jobs.ended(job)
    assert (view.state, view.job.limits) == ("succeeded", 1)
    calls = (jobs.fleet.folder / "calls").read_text().splitlines()
    assert "--session ses_1" not in calls[0]
    assert "--session ses_1" in calls[1]


CLAUDE = """
import json, sys, time
with open(CALLS, "a") as file: print(json.dumps([time.time(), sys.argv[1:]]), file=file)
first = len(open(CALLS).readlines()) == 1
text = f"Claude AI usage limit reached|{RESET}" if first else "done"
ended = {"type": "result", "subtype": "success", "is_error": first, "result": text, "session_id": "ses-1"}
for record in ({"type": "system", "subtype": "init", "session_id": "ses-1"}, ended):
    print(json.dumps(record, separators=(",", ":")), flush=True)
sys.exit(first)
"""


def test_j3_r9_a_job_hit_by_a_usage_window_waits_until_its_reset_and_then_resumes_its_session(jobs: Jobs):
    fleet = jobs.fleet
    reset = int(time()) + 6
    calls = fleet.folder / "calls"
    program = fleet.script("claude", f"#!{sys.executable}\nCALLS, RESET = {str(calls)!r}, {reset}\n{CLAUDE}")
    command = [program, "-p", "--output-format", "stream-json", "fix it"]
    job = jobs.quickly(*command, models=(OPUS,), retries=0, session="issue-7")
    jobs.worker(1)
    fleet.until(lambda: jobs.view(job).job.limits == 1)
    view = jobs.view(job)
    assert (view.state, view.job.outcome, view.job.failures) == ("queued", "usage_window", 0)
    assert view.reason is not None
    assert (view.reason.code, view.reason.cause) == ("backoff", "usage_window")
    view = jobs.ended(job)
    assert (view.state, view.job.attempt, view.job.limits) == ("succeeded", 2, 1)
    (_, first), (at, second) = [json.loads(line) for line in calls.read_text().splitlines()]
    assert "--resume" not in first
    assert second[:2] == ["--resume", "ses-1"]
    assert reset - 1.1 <= at <= reset + 20, "the reset is in whole seconds, and the wait is by another clock"


# Death.


def test_j2_a_job_whose_hand_is_killed_is_run_again_and_never_twice_at_once(jobs: Jobs):
    fleet = jobs.fleet
    job = jobs.quickly(*fleet.sleeper("job", 1.5))
    jobs.worker(2)
    fleet.until(lambda: fleet.has_started("job"))
    child = jobs.child_of(job)
    fleet.killed_at[child] = 0
    kill_if_there(jobs.process_of(job))
    view = jobs.ended(job)
    assert (view.state, view.job.attempt, view.job.losses, view.job.failures) == ("succeeded", 2, 1, 0)
    assert not is_alive(child), "the agent of a killed worker process is ended"
    (_, first, _), (_, second, _) = fleet.notes("start")
    assert first == child != second
    assert fleet.is_empty()


def test_j2_a_job_that_is_not_to_be_repeated_is_lost_with_its_worker(jobs: Jobs):
    fleet = jobs.fleet
    job = jobs.submit("--on-lost", "fail", "--", *fleet.sleeper("job", 60))
    jobs.worker(1)
    fleet.until(lambda: fleet.has_started("job"))
    kill_if_there(jobs.process_of(job))
    jobs.cli("wait", job, code=70)
    assert [event.state for _, event in fleet.events_of(ev.JobEnded)] == ["lost"]


def test_j2_a_worker_that_is_killed_leaves_worker_processes_that_finish_what_they_run(jobs: Jobs):
    fleet = jobs.fleet
    job = jobs.quickly(*fleet.sleeper("job", 1.0))
    worker = jobs.worker(2)
    fleet.until(lambda: fleet.has_started("job"))
    processes = processes_of(worker)
    worker.signal(signal.SIGKILL)
    view = jobs.ended(job)
    assert (view.state, view.job.attempt) == ("succeeded", 1)
    fleet.until(lambda: not any(is_alive(pid) for pid in processes), what="processes that leave")


def test_j2_a_stopping_worker_finishes_its_jobs_and_takes_no_new_one(jobs: Jobs):
    fleet = jobs.fleet
    runs = jobs.quickly(*fleet.sleeper("runs", 1.0))
    worker = jobs.worker(1)
    fleet.until(lambda: fleet.has_started("runs"))
    waits = jobs.quickly(*fleet.sleeper("waits", 0))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert (jobs.state(runs), jobs.state(waits)) == ("succeeded", "queued")


def test_j2_a_worker_stopped_twice_requeues_its_jobs_and_spends_no_retry(jobs: Jobs):
    fleet = jobs.fleet
    job = jobs.quickly(*fleet.sleeper("job", 60))
    worker = jobs.worker(1)
    fleet.until(lambda: fleet.has_started("job"))
    worker.signal(signal.SIGTERM)
    fleet.until(lambda: "stopping" in worker.err)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    view = jobs.view(job)
    assert (view.state, view.job.attempt, view.job.failures) == ("queued", 1, 0)
    assert not fleet.state.leases
    worker = jobs.worker(1, "--now")
    fleet.until(lambda: len(fleet.notes("start")) == 2)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert jobs.state(job) == "queued"


def test_j2_a_slot_taken_back_by_force_fails_the_job_and_its_hand_writes_nothing_more(jobs: Jobs):
    fleet = jobs.fleet
    job = jobs.quickly(*fleet.sleeper("job", 60))
    jobs.worker(1)
    fleet.until(lambda: fleet.has_started("job"))
    child = jobs.child_of(job)
    fleet.gate.decide([cmd.Reclaim(job, "a person")])
    fleet.until(lambda: not is_alive(child), what="the end of an agent without a slot")
    view = jobs.ended(job)
    assert (view.state, view.job.why) == ("failed", "its slot was taken back by a person")
    later = jobs.quickly("true")
    jobs.ended(later)
    assert jobs.state(job) == "failed"


# Dispatch.


def test_j6_dispatch_starts_what_fits_and_defers_the_rest_at_no_cost(jobs: Jobs):
    fleet = jobs.fleet
    fleet.gate.decide([cmd.SetRule(Rule("agents", "*/claude-opus-*", cap=1))])
    lines = [
        json.dumps({"command": fleet.sleeper(f"c{number}", 1.0), "model": model, "name": f"c{number}"})
        for number, model in enumerate((OPUS, OPUS, SONNET))
    ]
    path = fleet.folder / "candidates"
    path.write_text("\n".join(lines))
    dry = jobs.cli("dispatch", "--candidates", str(path), "--dry-run").out.splitlines()
    deferred = f"deferred model={OPUS} name=c1: 1 of 1 slots of */claude-opus-*:anthropic are taken"
    assert dry == [f"would start model={OPUS} name=c0", deferred, f"would start model={SONNET} name=c2"]
    assert not job_store.every(fleet.gate.log)
    told = jobs.cli("dispatch", "--candidates", str(path)).out.splitlines()
    assert [line.split()[0] for line in told] == ["started", "deferred", "started"]
    assert told[1] == deferred
    for line in (told[0], told[2]):
        assert jobs.ended(line.split()[1]).state == "succeeded"
    assert sorted(name for name, _, _ in fleet.notes("start")) == ["c0", "c2"]
    assert fleet.is_empty()
    assert jobs.cli("dispatch", "--candidates", "/nowhere", code=64)


# Spare children: forked before a job is known.


def spare_of(process: int) -> int:
    """The child that an idle worker process has ready."""
    (spare,) = children_of(process)
    return spare


def idle(jobs: Jobs, worker: Run, processes: int = 1) -> list[int]:
    jobs.fleet.until(
        lambda: (
            len(processes_of(worker)) == processes and all(len(children_of(pid)) == 1 for pid in processes_of(worker))
        ),
        what="processes with a child ready",
    )
    return processes_of(worker)


def test_j2_a_child_that_was_forked_before_runs_its_job_as_any_other(jobs: Jobs):
    fleet = jobs.fleet
    (process,) = idle(jobs, jobs.worker(1))
    spare = spare_of(process)
    long = "x" * 100_000  # more than a pipe takes at once
    body = 'echo "$PWD $MINE ${#0} $(($$ == SPARE)) $(ps -o pgid= -p $$)"; exit 7'
    job = jobs.quickly("bash", "-c", body, long, env={"MINE": "ä", "SPARE": str(spare)}, retries=0)
    view = jobs.ended(job)
    assert (view.state, view.job.exit_code) == ("failed", 7)
    assert jobs.cli("logs", job).out.split() == [str(fleet.folder), "ä", "100000", "1", str(spare)]
    missing = jobs.quickly("no-such-program")
    assert jobs.ended(missing).job.exit_code == 127
    idle_again = children_of(process)
    fleet.until(lambda: len(children_of(process)) == 1, what=f"another spare, not {idle_again}")


def test_j2_a_spare_that_was_killed_is_not_used_and_one_whose_hand_dies_leaves(jobs: Jobs):
    worker = jobs.worker(1)
    (process,) = idle(jobs, worker)
    kill_if_there(spare_of(process))
    view = jobs.ended(jobs.quickly("true"))
    assert (view.state, view.job.attempt) == ("succeeded", 1)
    jobs.fleet.until(lambda: len(children_of(process)) == 1)
    spare = spare_of(process)
    kill_if_there(process)
    jobs.fleet.until(lambda: not is_alive(spare), what="the spare leaves")
    jobs.fleet.until(lambda: process not in processes_of(worker), what="a worker that has seen its end")
    (other,) = idle(jobs, worker)
    assert other != process


def test_q2_worker_processes_without_a_mailbox_run_jobs_and_end_with_their_worker(jobs: Jobs):
    jobs.quickly("true")  # the store is there
    place = Path(mailbox.runtime_folder(str(jobs.fleet.home))) / mailbox.WORKERS
    place.write_text("in the way")
    worker = jobs.worker(2)
    job = jobs.quickly("true")
    assert jobs.ended(job).state == "succeeded"
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_j2_worker_processes_that_start_at_the_same_moment_all_have_a_mailbox(jobs: Jobs):
    worker = jobs.worker(8)
    jobs.fleet.until(lambda: len(mailbox.worker_processes(str(jobs.fleet.home))) == 8, what="eight mailboxes")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_job_runs_with_the_model_of_its_slot_and_one_that_cannot_is_refused(jobs: Jobs):
    script = jobs.fleet.script("opencode", '#!/bin/sh\necho "ran $*"\n')
    ident = jobs.submit("-m", SONNET, "--", script, "run", "-m", OPUS, "hi")
    jobs.worker(1)
    assert jobs.ended(ident).state == "succeeded"
    told = jobs.cli("logs", ident).out
    assert f"ran run -m {SONNET} hi" in told
    claude = jobs.fleet.script("claude", "#!/bin/sh\n")
    refused = jobs.cli("submit", "-m", "openai/gpt-5", "--", claude, "--model", "opus", code=64)
    assert "claude is told to use opus, and the slot is for openai/gpt-5" in refused.err
    candidate = json.dumps({"command": [claude, "--model", "opus"], "model": "openai/gpt-5"})
    (jobs.fleet.folder / "one.jsonl").write_text(candidate)
    assert "the slot is for openai/gpt-5" in jobs.cli("dispatch", "--candidates", "one.jsonl", code=64).err
