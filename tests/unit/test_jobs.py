"""Jobs without processes: the table of states, what an end means, what is kept of output (rules J3, J4)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.usage import RECORD, Usage
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import job_store, output_files, state_machine, submit, unattended_ends
from fleetgate.jobs.job_record import Job, JobSpec, add_usage
from fleetgate.jobs.output_files import ERR, NOTE, OUT, OutputReader, OutputWriter
from fleetgate.jobs.retry_policy import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    MOST_LOSSES,
    UNNAMED_LIMIT_MS,
    AttemptEnd,
    lost,
    pause_ms,
    valid_retry_on,
    verdict,
)
from fleetgate.jobs.worker.attempt import Attempt
from fleetgate.log.protocol import START, StoreError
from fleetgate.log.sqlite.log import SqliteLog
from fleetgate.notify.messages import messages_of

PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()


def job(failures: int = 0, losses: int = 0, **said: object) -> Job:
    spec = JobSpec(("true",), "/", "box", **said)  # type: ignore[arg-type]
    return Job(spec, state_machine.RUNNING, 0, 0, attempt=failures + 1, failures=failures, losses=losses)


# States.


def test_j4_the_diagram_on_the_page_is_the_table():
    drawn = re.findall(r"^    (\S+) --> (\S+): (\S+)$", PAGE, re.MULTILINE)
    table = {(source, edge.target, name) for name, edge in state_machine.EDGES.items() for source in edge.sources}
    assert set(drawn) == table | {("[*]", state_machine.QUEUED, "submit")}
    explained = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    meanings = {name: text.replace("`", "") for name, text in explained if name in state_machine.EDGES}
    assert meanings == {name: edge.meaning for name, edge in state_machine.EDGES.items()}


def test_j4_final_states_are_left_only_by_a_persons_wish():
    for final in state_machine.FINAL:
        assert [name for name, edge in state_machine.EDGES.items() if final in edge.sources] == ["retry"]
    assert set(state_machine.STATES) == {
        state for edge in state_machine.EDGES.values() for state in (*edge.sources, edge.target)
    }


def test_j4_an_edge_that_does_not_begin_here_is_refused_with_what_is_valid():
    assert state_machine.next_state(state_machine.QUEUED, "start") == state_machine.RUNNING
    with pytest.raises(BadRequest, match="it is succeeded; only what is queued can start"):
        state_machine.next_state(state_machine.SUCCEEDED, "start")


# Verdicts.


@pytest.mark.parametrize("kind", ["rate_limited", "overloaded", "usage_window", "quota", "auth"])
def test_j3_a_limit_spends_no_retry_and_waits_for_its_backoff(kind: str):
    found = verdict(job(failures=3, retries=3), AttemptEnd(kind, exit_code=1, model="a/b"), 0.5)
    assert (found.edge, found.pause_ms) == ("limit", 0)


def test_j3_a_limit_of_a_job_without_a_model_pauses_by_itself():
    assert verdict(job(), AttemptEnd("rate_limited"), 0.5).pause_ms == UNNAMED_LIMIT_MS
    assert verdict(job(), AttemptEnd("rate_limited", wait_ms=7000), 0.5).pause_ms == 7000


def test_j3_a_failure_spends_a_retry_until_none_is_left():
    failed = AttemptEnd("local_error", exit_code=1)
    assert verdict(job(failures=2, retries=3), failed, 0.5).edge == "again"
    assert verdict(job(failures=3, retries=3), failed, 0.5) == ("fail", "exit 1", 0)


def test_j3_pauses_grow_up_to_a_bound_and_are_jittered():
    pauses = [pause_ms(failures, 0.5) for failures in range(12)]
    assert pauses[:3] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS]
    assert pauses[-1] == LONGEST_PAUSE_MS
    assert pause_ms(0, 0) < pause_ms(0, 0.5) < pause_ms(0, 1)


def test_j3_only_what_is_named_is_tried_again():
    named = job(retry_on=("75", "server_error"))
    assert verdict(named, AttemptEnd("local_error", exit_code=75), 0).edge == "again"
    assert verdict(named, AttemptEnd("server_error", exit_code=1), 0).edge == "again"
    assert verdict(named, AttemptEnd("local_error", exit_code=1), 0).edge == "fail"
    assert verdict(job(retry_on=("143",)), AttemptEnd("local_error", signal=15), 0).edge == "again"
    assert [word for word in ("0", "1", "255", "256", "ok", "auth", "x", "²") if valid_retry_on(word)] == [
        "1",
        "255",
        "auth",
    ]


def test_j3_the_other_ends_of_an_attempt():
    assert verdict(job(), AttemptEnd("ok", exit_code=0), 0) == ("finish", "", 0)
    assert verdict(job(), AttemptEnd("ok", exit_code=0, ended_because="cancel"), 0).edge == "cancel"
    assert verdict(job(), AttemptEnd("local_error", signal=15, ended_because="hand_back"), 0).edge == "hand_back"
    assert verdict(job(), AttemptEnd("local_error", exit_code=1, ended_because="give_way", by="x"), 0).edge == "cancel"
    assert verdict(job(), AttemptEnd("local_error", exit_code=1, by="x"), 0).edge == "cancel"
    assert verdict(job(), AttemptEnd("ok", exit_code=0, by="x"), 0).edge == "finish"
    assert verdict(job(), AttemptEnd("local_error", exit_code=127, hopeless=True), 0).edge == "fail"
    assert verdict(job(retries=0), AttemptEnd("local_error", exit_code=1, stale_session=True), 0).edge == "limit"
    overstayed = verdict(job(retries=0), AttemptEnd("local_error", signal=15, ended_because="overstayed"), 0)
    assert overstayed.why == "ended by its time-out"
    assert verdict(job(retries=0), AttemptEnd("server_error"), 0).why == "server_error"


def test_v7_a_job_that_a_budget_stops_spends_no_retry_unless_it_had_finished():
    stopped = AttemptEnd("local_error", "budget project:web usd/day is used up", signal=15, ended_because="budget")
    assert verdict(job(retries=0), stopped, 0) == ("limit", "stopped: budget project:web usd/day is used up", 0)
    assert verdict(job(), stopped._replace(outcome="ok", exit_code=0), 0).edge == "finish"


def test_j2_a_job_that_takes_its_worker_down_each_time_is_lost_in_the_end():
    assert lost(job(on_lost="fail")).edge == "lose"
    assert lost(job()).edge == "requeue"
    assert lost(job(losses=MOST_LOSSES - 1)).edge == "lose"


# Output.


def put_together(reader: OutputReader, mark: bytes) -> bytes:
    return b"".join(piece.data for piece in reader.read() if piece.mark == mark)


def test_j4_output_is_put_together_as_it_was_printed(tmp_path: Path):
    folder = str(tmp_path)
    writer = OutputWriter(folder, "job", 1 << 20)
    out = [b"one\ntwo", b" more\n", b"\xff\r\x00\n\n", b"y" * 150_000, b"\nend"]
    for part in out:
        writer.write(1, part)
        writer.write(2, b"e\n")
    writer.note("a note\nof ours")
    writer.close()
    assert put_together(OutputReader(folder, "job"), OUT) == b"".join(out)
    assert put_together(OutputReader(folder, "job"), ERR) == b"e\n" * len(out)
    assert put_together(OutputReader(folder, "job"), NOTE) == b"a note of ours\n"


def test_j4_a_reader_goes_on_over_rotated_files_and_loses_nothing_that_is_kept(tmp_path: Path):
    folder = str(tmp_path)
    writer, reader = OutputWriter(folder, "job", 40_000), OutputReader(folder, "job")
    seen = b""
    for number in range(40):
        writer.write(1, b"%05d %s\n" % (number, b"x" * 500))
        if number % 7 == 0:
            seen += put_together(reader, OUT)
    seen += put_together(reader, OUT)
    assert [int(line[:5]) for line in seen.splitlines()] == list(range(40))
    for number in range(40, 400):
        writer.write(1, b"%05d %s\n" % (number, b"x" * 500))
    writer.close()
    kept = [int(line[:5]) for line in put_together(OutputReader(folder, "job"), OUT).splitlines()]
    assert kept == list(range(kept[0], 400))
    assert kept[0] > 0
    output_files.remove(folder, "job")
    assert not output_files.files(folder, "job")


def test_j4_a_place_in_the_output_stays_the_same_however_often_files_are_renamed(tmp_path: Path):
    folder = str(tmp_path)
    writer = OutputWriter(folder, "job", 40_000)
    for number in range(5):
        writer.write(1, b"%05d\n" % number)
    place = output_files.page(folder, "job").next
    for number in range(5, 60):  # more than one file, all kept
        writer.write(1, b"%05d %s\n" % (number, b"x" * 400))
    writer.close()
    writer = OutputWriter(folder, "job", 40_000)  # the next attempt goes on in the same file
    writer.write(2, b"00060\n")
    found = output_files.page(folder, "job", place)
    assert [int(piece.data[:5]) for piece in found.pieces] == list(range(5, 61))
    assert (found.more, found.skipped) == (False, False)
    assert output_files.page(folder, "job", found.next) == ([], found.next, False, False)
    for number in range(61, 400):
        writer.write(1, b"%05d %s\n" % (number, b"x" * 400))
    late = output_files.page(folder, "job", place)
    assert late.skipped, "what was asked for is no longer kept, and that is said"
    numbers = [int(piece.data[:5]) for piece in late.pieces]
    assert numbers == list(range(numbers[0], 400))


def test_j4_output_is_read_page_by_page_and_from_its_end(tmp_path: Path):
    folder = str(tmp_path)
    writer = OutputWriter(folder, "job", 4 << 20)
    for number in range(3000):
        writer.write(1, b"%05d %s\n" % (number, b"x" * 500))
    writer.close()
    seen, after, pages, more = [], "", 0, True
    while more:
        found = output_files.page(folder, "job", after, most=1)
        seen += [int(piece.data[:5]) for piece in found.pieces]
        after, more, pages = found.next, found.more, pages + 1
    assert seen == list(range(3000))
    assert pages > 10
    last = output_files.page(folder, "job", tail=10_000)
    assert [int(piece.data[:5]) for piece in last.pieces] == list(range(3000 - len(last.pieces), 3000))
    assert 15 < len(last.pieces) < 20
    assert len(output_files.page(folder, "job", tail=1 << 30, most=1 << 30).pieces) == 3000
    assert output_files.page(folder, "none") == ([], "", False, False)
    with pytest.raises(BadRequest, match="valid is a place"):
        output_files.page(folder, "job", "yesterday")


def test_q2_output_that_cannot_be_written_is_counted_and_stops_nothing(tmp_path: Path):
    (tmp_path / "jobs").write_text("in the way")
    writer = OutputWriter(str(tmp_path), "job", 1 << 20)
    writer.write(1, b"hello\n")
    writer.note("lost")
    writer.close()
    assert writer.lost > 0


# Usage.

ONE = Usage(1, 1000, 0, 0, 100, 10_000, RECORD)


def test_u2_an_attempt_counts_once_however_often_its_usage_is_noted():
    one = job()
    add_usage(one, ONE)
    add_usage(one, ONE)
    add_usage(one, None)
    assert one.spent == ONE
    one.attempt = 2
    add_usage(one, ONE)
    assert one.spent == ONE.plus(ONE)
    assert [each.attempt for each in one.attempts_spent] == [1, 2]


def running(gate: DirectGate, **said: object) -> Attempt:
    """A job of this process, as if its agent had been started."""
    (one,) = submit.submit(gate, [JobSpec(("true",), "/", gate.host, **said)])  # type: ignore[arg-type]
    gate.one(cmd.Offer(one.id, gate.me, gate.host, "", ()))
    found = job_store.find(gate.log, one.id)
    assert found is not None
    attempt = Attempt(gate, gate.state.leases[one.id], found, lambda text: None)
    attempt._begin(gate.me)
    return attempt


def test_j3_an_end_that_has_to_be_written_twice_spends_one_retry_and_counts_its_usage_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gate = DirectGate(SqliteLog(str(tmp_path)), folder=str(tmp_path))
    attempt, decide = running(gate, retries=3), gate.decide

    def away(*_: object, **__: object) -> None:
        raise StoreError("away")

    release = cmd.Release(attempt.id, "local_error", exit_code=1, holder=gate.me, usage=ONE)
    monkeypatch.setattr(gate, "decide", away)
    with pytest.raises(StoreError):
        attempt.settle(release, AttemptEnd("local_error", exit_code=1), [])
    monkeypatch.setattr(gate, "decide", decide)
    attempt.settle(release, AttemptEnd("local_error", exit_code=1), [])
    ended = job_store.view(gate, attempt.id).job
    assert (ended.state, ended.failures, ended.spent) == ("queued", 1, ONE)
    gate.close()


def test_u2_v3_what_was_reserved_for_an_attempt_whose_worker_died_counts_for_the_job(tmp_path: Path):
    gate = DirectGate(SqliteLog(str(tmp_path)), folder=str(tmp_path))
    attempt = running(gate)
    spent = Usage(1, 500, output=20, source=RECORD)
    gate.one(cmd.Settle(attempt.id, spent))
    gate.one(cmd.Lost((gate.state.leases[attempt.id].lives_with,)))
    assert unattended_ends.see_to_ends(gate) == 1
    ended = job_store.view(gate, attempt.id).job
    assert (ended.state, ended.losses) == ("queued", 1)
    assert ended.spent is not None
    assert (ended.spent.input, ended.spent.output) == (500, 20)
    gate.close()


# A day in the queue.


def test_a8_a_job_in_the_queue_for_a_day_expires_is_told_once_and_never_starts(tmp_path: Path):
    now = 1_700_000_000_000
    gate = DirectGate(SqliteLog(str(tmp_path), lambda: now), folder=str(tmp_path))
    (one,) = submit.submit(gate, [JobSpec(("true",), "/", gate.host, name="late")])
    now += 86_400_000 - 1000
    gate.decide([])
    assert job_store.view(gate, one.id).state == state_machine.QUEUED
    now += 1000
    gate.decide([])
    assert job_store.view(gate, one.id).state == state_machine.EXPIRED, "also before anybody has seen to it"
    assert unattended_ends.see_to_ends(gate) == 1
    assert unattended_ends.see_to_ends(gate) == 0
    view = job_store.view(gate, one.id)
    assert (view.state, view.job.why, view.job.attempt) == (state_machine.EXPIRED, "expired after 1d", 0)
    with pytest.raises(NotFound):
        gate.one(cmd.Offer(one.id, gate.me, gate.host, "", ()))
    commits = gate.log.read(START)
    told = [message.kind for commit in commits for message in messages_of(commit, lambda _: None, str)]
    assert told == ["queued", "expired"]
    gate.close()
