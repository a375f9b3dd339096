"""`simulate --from-history` on the log of real runs: the replay gives the waits that were measured."""

from __future__ import annotations

import pytest

from tests.processes.fleet import Fleet

pytestmark = pytest.mark.processes


def test_the_waits_of_real_runs_are_those_of_their_replay_and_another_cap_shortens_them() -> None:
    with Fleet("[agents]\nhost = 1\n") as fleet:
        runs = [fleet.run("-m", "acme/x", "--", *fleet.sleeper(f"agent-{number}", 0.3)) for number in range(5)]
        assert [run.wait() for run in runs] == [0] * 5
        asked = ("simulate", "--from-history", "--since", "1h", "--cap", "host=5")
        (pool,) = fleet.json(*asked)["pools"]
        measured, unchanged, what_if = pool["measured"], pool["unchanged"], pool["what_if"]
        assert (pool["kind"], measured["requests"], measured["finished"]) == ("agents", 5, 5)
        assert measured["wait_max_s"] > 0.5
        for name in ("wait_mean_s", "wait_p50_s", "wait_p95_s", "wait_max_s"):
            assert unchanged[name] == pytest.approx(measured[name], abs=0.1)
        assert what_if["waited"] == 0
        assert what_if["wait_max_s"] == 0
