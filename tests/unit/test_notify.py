"""T1: what is told, once per incident, limited per hour, tried again, in order."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from fleetgate.config.settings import TOLD, TOLD_BY_DEFAULT, Notify
from fleetgate.core import events as ev
from fleetgate.core.entities import Reason, Spec, Ticket
from fleetgate.log.protocol import Commit
from fleetgate.notify.messages import Message, messages_of, wanted
from fleetgate.notify.senders import NotSent, sender, way
from fleetgate.notify.targets import GIVE_UP_S, HOUR_S, Saved, Target
from fleetgate.present.log_time import LogTimes

OPUS = "anthropic/claude-opus-4-6"
AT = 1_000_000


def told(*events: ev.Event, kinds: tuple[str, ...] = TOLD) -> list[tuple[str, str]]:
    commit = Commit(1, "c", AT, len(events), None, list(events))
    found = wanted(messages_of(commit, lambda ident: 3, lambda at: f"at {at}"), kinds)
    return [(message.kind, message.text) for message in found if message.kind]


def test_V7_a_budget_that_is_used_up_is_told_at_50_80_and_100_percent():
    def reached(percent: int, used: int, when_empty: str = "hold", budget: str = "project:web usd/day") -> ev.Event:
        return ev.BudgetReached(budget, percent, used, 20_000_000, 9_000_000, when_empty)

    assert told(reached(50, 10_000_000), kinds=TOLD_BY_DEFAULT) == []
    assert told(reached(50, 10_000_000))[0][0] == "budget_50"
    assert told(reached(80, 16_000_000), kinds=TOLD_BY_DEFAULT) == [
        ("budget_80", "project:web has used $16.00 of $20.00 today (80 %), resets at 9000000")
    ]
    ((kind, text),) = told(reached(100, 20_000_000, "stop"), kinds=TOLD_BY_DEFAULT)
    assert kind == "budget_100"
    assert text.endswith("resets at 9000000; new requests wait and running agents are stopped")
    assert told(reached(80, 17_000_000, budget="anthropic/claude-opus-* tokens/5h"))[0][1] == (
        "anthropic/claude-opus-* has used 17,000,000 of 20,000,000 tokens in 5h (80 %), resets at 9000000"
    )


class Box:
    """A target whose messages land here."""

    def __init__(self, **said: object) -> None:
        self.got: list[str] = []
        self.troubles: list[str] = []
        self.broken = False
        config = Notify(name="box", url="https://x", **said)  # type: ignore[arg-type]
        self.target = Target(config, Saved(), self._deliver, self.troubles.append)
        self._seq = 0

    def _deliver(self, message: Message) -> None:
        if self.broken:
            raise NotSent("down")
        self.got.append(message.text)

    def tell(self, text: str, now: float, kind: str = "failed", **said: str) -> bool:
        self._seq += 1
        return self.again(text, now, kind, **said)

    def again(self, text: str, now: float, kind: str = "failed", **said: str) -> bool:
        return self.target.offer(Message(kind, text, self._seq, **said), now)  # type: ignore[arg-type]


def backed_off(reason: str, until: int = AT + 60_000, manual: bool = False) -> ev.BackedOff:
    return ev.BackedOff("anthropic", "account", reason, AT, until, manual=manual)


def test_t1_each_kind_of_event_is_told_in_a_sentence():
    ticket = Ticket("i", Spec(), "p", 0, 1, AT, AT, AT + 1, command="aider")
    full = Reason("concurrency_cap", "3 of 3 slots are taken")
    assert told(ev.Queued(ticket, full)) == [
        ("queued", "i is waiting for a slot: 3 of 3 slots are taken [aider], position 3")
    ]
    assert told(ev.Granted("i", OPUS, 1)) == [("started", f"i got {OPUS}")]
    assert told(ev.Expired("i", 86_400_000)) == [("expired", "i left the queue: expired after 1d")]
    assert told(ev.Held("i", "aider")) == [("held", "i is held until it is approved [aider]: fleetgate approve i")]
    assert told(ev.JobEnded("i", "lost", 1)) == [("failed", "job i is lost")]
    assert told(ev.JobEnded("i", "succeeded", 1)) == [("succeeded", "job i succeeded")]
    assert told(ev.JobEnded("i", "cancelled", 1)) == []
    assert told(backed_off("auth"))[0][0] == "login"
    assert "needs a person (log in again)" in told(backed_off("auth"))[0][1]
    assert told(backed_off("usage_window"))[0][0] == "rate_limited"
    assert told(backed_off("auth", manual=True)) == []
    assert told(ev.BackoffEnded("anthropic", "time"))[0][0] == "recovered"


def test_t1_ends_of_runs_are_told_and_attempts_of_jobs_are_not():
    failed = ev.Released("i", "local_error", OPUS, 1, 1, exit_code=1)
    assert [kind for kind, _ in told(failed)] == ["failed"]
    assert told(ev.Released("i", "local_error", OPUS, 1, 1, job=True)) == []
    assert told(ev.Released("i", "rate_limited", OPUS, 1, 1)) == []
    assert told(ev.Released("i", "local_error", OPUS, 1, 1, kind="requests")) == []


def test_t1_model_calls_and_jobs_back_in_the_queue_are_not_told_as_queued():
    reason = Reason("behind", "others are ahead")
    call = Ticket("i", Spec(kind="requests"), "p", 0, 1, AT, AT, AT + 1)
    again = Ticket("i", Spec(), "", 0, 1, AT - 5, AT, AT + 1, job=True, away=True)
    assert told(ev.Queued(call, reason), ev.Queued(again, reason)) == []


def test_t1_a_rate_limit_that_lowers_a_limit_is_one_message():
    incident = (
        ev.Paused("requests", "umans", AT + 30_000, "rate_limited", incident=True),
        ev.Reduced("requests", "umans", 3, 4),
    )
    assert [kind for kind, _ in told(*incident)] == ["auto_reduced"]
    assert [kind for kind, _ in told(*incident, kinds=("rate_limited",))] == ["rate_limited"]
    assert told(ev.Paused("requests", "umans", AT + 60_000, "rate_limited")) == [], "the same incident, longer"
    assert told(ev.Paused("requests", "umans", AT + 60_000)) == [], "a person's pause"


def test_t1_an_incident_is_told_once_and_its_end_once():
    box = Box()
    for text in ("first", "extended", "once more"):
        assert box.tell(text, 0, opens="backoff anthropic")
    box.tell("over", 0, closes="backoff anthropic")
    box.tell("over again", 0, closes="backoff anthropic")
    box.tell("anew", 0, opens="backoff anthropic")
    assert box.got == ["first", "over", "anew"]


def refused(why: str, level: int, limit: int, cap: int = 20) -> tuple[ev.Event, ...]:
    """As the engine has it: a short pause, and what the refusal was taken to mean."""
    paused = ev.Paused("requests", "umans", AT + 300, "rate_limited", incident=why != "fit")
    return paused, ev.Refused("requests", "umans", "i", why, level, limit, cap)


def accepted(level: int) -> ev.Event:
    return ev.Accepted("i", "requests", "umans", level)


def test_t1_p4_of_a_learned_limit_only_what_people_should_know_is_told_once():
    box = Box()
    seq = 0

    def happens(*events: ev.Event) -> list[str]:
        nonlocal seq
        before = len(box.got)
        commit = Commit(1, "c", AT, seq + len(events), None, list(events))
        for message in wanted(messages_of(commit, lambda ident: 3, str), TOLD_BY_DEFAULT):
            assert box.target.offer(message, 0)
        seq += len(events)
        return box.got[before:]

    (found,) = happens(*refused("exact", 7, 6))
    assert found.endswith("the limit is 6 (cap 20)")
    assert happens(*refused("fit", 7, 6)) == []
    assert happens(*refused("probe", 7, 6)) == []
    assert happens(*refused("lag", 6, 6)) == []
    assert happens(*refused("exact", 7, 6)) == [], "told already"
    (sunk,) = happens(*refused("drop", 5, 3))
    assert "has dropped" in sunk
    assert happens(*refused("drop", 4, 2)) == [], "the same incident"
    assert happens(accepted(4)) == []
    assert "5 concurrent calls confirmed" in happens(accepted(5))[0]
    assert happens(accepted(6)) == []
    (alone,) = happens(*refused("alone", 1, 1))
    assert "paused" in alone
    assert "20 concurrent calls confirmed" in happens(accepted(20))[0], "the cap is reached again"
    assert len(happens(*refused("exact", 7, 6))) == 1, "a new incident"
    assert happens(ev.CapRemoved("requests", "umans")) == []
    assert len(happens(*refused("exact", 7, 6))) == 1, "under other rules it is told anew"
    assert box.target.saved.open == ["limit requests umans until 20"]


def test_t1_what_is_over_the_limit_of_an_hour_is_summed_up():
    box = Box(per_hour=2)
    for number in range(5):
        box.tell(f"m{number}", float(number))
    assert box.got == ["m0", "m1"]
    assert not box.target.sum_up(HOUR_S - 1)
    assert box.target.sum_up(HOUR_S + 0.5)
    assert (
        box.got[2]
        == "not sent in the last hour because of the limit per hour: 3 failed; see fleetgate history --since 2"
    )
    assert not box.target.sum_up(2 * HOUR_S + 5)


def test_t1_a_message_that_was_not_taken_is_tried_again_after_growing_pauses_and_nothing_overtakes_it():
    box = Box()
    box.broken = True
    assert not box.tell("m", 0)
    first = box.target.retry_at
    assert not box.again("m", first)
    assert box.target.retry_at - first > first
    assert box.troubles == ["box: down (will retry)"]
    box.broken = False
    assert box.again("m", box.target.retry_at)
    assert box.again("m", box.target.retry_at), "seen to already"
    assert box.got == ["m"]


def test_t1_an_incident_that_could_not_be_told_is_still_told_later():
    box = Box()
    box.broken = True
    assert not box.tell("down", 0, opens="backoff x")
    box.broken = False
    assert box.again("down", 10, opens="backoff x")
    assert box.got == ["down"]


def test_t1_a_target_that_takes_nothing_for_hours_is_given_up_for_a_summary():
    box = Box()
    box.broken = True
    box.tell("old", 0)
    assert box.again("old", GIVE_UP_S + 1)
    box.broken = False
    assert box.target.sum_up(box.target.retry_at)
    assert "1 failed" in box.got[0]


def test_t1_what_happens_most_is_told_only_to_those_who_ask_for_it():
    assert set(TOLD) - set(TOLD_BY_DEFAULT) == {"budget_50", "queued", "started", "succeeded"}


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (Notify(command=("false",)), "false ended with 1"),
        (Notify(command=("no-such-program",)), "cannot run no-such-program"),
        (Notify(url_env="NO_SUCH_VARIABLE"), "$NO_SUCH_VARIABLE is not set"),
        (Notify(url="http://127.0.0.1:9/secret-token"), "the webhook cannot be reached"),
        (Notify(url="nonsense://secret-token"), "Apprise does not understand this nonsense URL"),
    ],
)
def test_t1_what_cannot_be_sent_says_why_and_shows_no_secret(target: Notify, says: str):
    with pytest.raises(NotSent) as error:
        sender(target)("title", {"event": "test", "text": "hello"})
    assert says in str(error.value)
    assert "secret" not in str(error.value) + way(target)


@pytest.mark.parametrize(
    ("ahead_h", "says"), [(3, "at 13:00"), (19, "at 05:00"), (24 * 13, "on 2026-12-01 at 10:00"), (-1, "at 09:00")]
)
def test_V7_a_moment_is_said_in_the_configured_time_zone(ahead_h: int, says: str):
    class Gate:
        def now(self) -> int:
            return 5_000

        def wall_offset_ms(self) -> int:
            return round(datetime(2026, 11, 18, 9, tzinfo=UTC).timestamp() * 1000) - 5_000

    assert LogTimes(Gate()).clock(5_000 + ahead_h * 3_600_000, ZoneInfo("Europe/Berlin")) == says
