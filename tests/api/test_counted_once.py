"""H4: counters follow the log: each event counts once, no matter which process committed it, and how it is heard of."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fleetgate.api.events.feed import Feed
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.replica.replica import Replica
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log import open_log
from fleetgate.log.protocol import START, StoreError
from tests.api.served import Served
from tests.api.test_metrics import read
from tests.front.fronted import until


def test_h4_each_grant_counts_once_whoever_made_it_and_whoever_listens(fresh: Served) -> None:
    def pairs(number: int) -> None:
        for turn in range(20):
            lease = fresh.lease(f"umans/coder-{number}").json["lease"]
            fresh.ok("POST", f"/v1/leases/{lease}/release")
            if turn % 5 == number:  # a stream that comes and goes
                connection = http.client.HTTPConnection("127.0.0.1", fresh.port, timeout=60)
                connection.request("GET", "/v1/events")
                assert connection.getresponse().status == 200
                connection.close()

    with ThreadPoolExecutor(8) as threads:
        work = [threads.submit(pairs, number) for number in range(4)]
        others = [threads.submit(fresh.cli, "run", "--", "true") for _ in range(4)]
        for each in work:
            each.result()
        assert [each.result().returncode for each in others] == [0] * 4
    granted = len(fresh.events("granted"))
    assert granted == 84

    def counted() -> float:
        return sum(value for name, value in read(fresh).items() if name.startswith("fleetgate_grants_total"))

    fresh.wait_until(lambda: counted() >= granted, "all are counted")
    assert counted() == granted


async def test_h4_events_are_heard_once_and_in_order_also_when_a_commit_fails_or_the_words_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ev.Event] = []
    url = f"sqlite://{tmp_path}"
    other = Replica(open_log(url), "vm|boot|ns|1|1")
    core = GateCore(open_log(url), None, str(tmp_path))
    async with core:
        feed = Feed(ServiceGate(core))
        feed.hear(heard.append)
        before = core.replica.position
        await feed.start()
        names = iter(f"pool-{number}" for number in range(100))

        async def ours() -> None:
            await core.send(cmd.SetRule(Rule("requests", next(names), 5)))

        def theirs() -> None:
            other.decide([cmd.SetRule(Rule("requests", next(names), 7))])

        def logged() -> list[ev.Event]:
            commits = core.log.read(START, 10_000)
            return [event for commit in commits if commit.number > before.commit for event in commit.events]

        for _ in range(3):
            await ours()
        assert len(heard) == 3, "at once, without reading the log"
        theirs()
        await ours()
        assert len(heard) == 5, "what another process committed was applied with it"

        real: Any = core.log.append
        monkeypatch.setattr(core.log, "append", _fails_once(real))
        with pytest.raises(StoreError):
            await ours()
        await ours()
        theirs()
        await until(lambda: len(heard) == len(logged()))

        listener = feed.listen()
        await ours()
        await until(lambda: len(heard) == len(logged()))
        assert sum(len(each) for each in listener.take()) == 1
        feed.leave(listener)
        for _ in range(3):
            await ours()
            theirs()
        await until(lambda: len(heard) == len(logged()))
        assert heard == logged()
        await feed.stop()
    other.log.close()


def _fails_once(real: Callable[..., Any]) -> Callable[..., Any]:
    failures = iter([StoreError("the disk is full")])

    def append(*arguments: Any) -> Any:
        for failure in failures:
            raise failure
        return real(*arguments)

    return append
