"""Counters of usage and gauges of budgets in `/metrics` (rule U4)."""

from __future__ import annotations

from fleetgate.api.metrics.exposition import CounterFamily
from fleetgate.api.metrics.usage_counters import MOST_COMBINATIONS, MOST_KEYS, OTHER, KeyCounters, UsageCounters
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import BudgetRule, Lease, Spec, Ticket
from fleetgate.core.usage import RESPONSE, Usage
from fleetgate.gate.replica.replica import Replica
from fleetgate.log import open_log
from tests.api.served import Served
from tests.api.test_metrics import read
from tests.usage_hours import OPUS

ME = "vm|boot|ns|1|1"


def test_u4_usage_of_any_process_is_counted_by_project_and_model(fresh: Served):
    replica = Replica(open_log(f"sqlite://{fresh.home}"), ME)

    def decide(*commands: cmd.Command) -> None:
        for command in commands:
            assert replica.decide([command])[0].error is None

    web = Spec(models=(OPUS,), kind="requests", host="vm", project="web")
    decide(
        cmd.SetBudget(BudgetRule("project:web", "usd", 20_000_000, "day")),
        cmd.Acquire("call-000001", web, ME, estimate=Usage(calls=1, cost=1_000_000), renew_ms=600_000),
        cmd.Acquire("call-000002", web, ME, estimate=Usage(calls=1, cost=2_000_000), renew_ms=600_000),
        cmd.Acquire("call-000003", web, ME, estimate=Usage(calls=1, cost=4_000_000), renew_ms=600_000),
        cmd.Settle("call-000001", Usage(output=7, source=RESPONSE)),
        cmd.Release("call-000001", "ok", usage=Usage(1, 10, 20, 30, 40, 1_500_000, RESPONSE)),
        cmd.Release("call-000002", "ok"),
    )
    replica.log.close()
    labels = f'{{model="{OPUS}",project="web"'
    expected = {
        f'fleetgate_usage_calls_total{labels},source="response"}}': 1,
        f'fleetgate_usage_calls_total{labels},source="estimate"}}': 1,
        f'fleetgate_usage_tokens_total{labels},type="input"}}': 10,
        f'fleetgate_usage_tokens_total{labels},type="cache_read"}}': 20,
        f'fleetgate_usage_tokens_total{labels},type="cache_write"}}': 30,
        f'fleetgate_usage_tokens_total{labels},type="output"}}': 47,
        f"fleetgate_usage_cost_dollars_total{labels}}}": 3.5,
        'fleetgate_budget_used{budget="project:web usd/day",unit="usd"}': 3.5,
        'fleetgate_budget_reserved{budget="project:web usd/day",unit="usd"}': 4,
        'fleetgate_budget_amount{budget="project:web usd/day",unit="usd"}': 20,
    }
    found = fresh.wait_until(
        lambda: (
            {name: numbers[name] for name in expected if name in numbers}
            if f'fleetgate_usage_calls_total{labels},source="estimate"}}' in (numbers := read(fresh))
            else None
        ),
        "the feed has counted",
    )
    assert found == expected


class Counted:
    """Counters of their own, and the leases that have not ended."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        labels = {
            "calls": ("project", "model", "source"),
            "tokens": ("project", "model", "type"),
            "cost": ("project", "model"),
        }
        calls, tokens, cost = [CounterFamily(f"{name}_total", name, of) for name, of in labels.items()]
        by_key = [CounterFamily(f"key_{name}_total", name, ("key",)) for name in labels]
        self._families = (calls, tokens, cost, *by_key)
        self.usage = UsageCounters(calls, tokens, cost, self.leases.get, KeyCounters(*by_key))

    def lines(self) -> list[str]:
        return [line.rstrip("\n") for family in self._families for line in family.lines()]

    def calls(self) -> dict[str, float]:
        calls = [line.rsplit(" ", 1) for line in self.lines() if line.startswith("calls_total{")]
        return {name: float(number) for name, number in calls}


def released(ident: str, project: str, usage: Usage | None) -> ev.Released:
    return ev.Released(ident, "ok", OPUS, 0, 0, project=project, usage=usage)


def test_u4_names_of_projects_cannot_make_counters_without_end():
    counted = Counted()
    for number in range(MOST_COMBINATIONS + 50):
        counted.usage.ended(released("a", f"p{number}", Usage(calls=1)))
    counted.usage.ended(released("a", "p0", Usage(calls=1)))
    calls = counted.calls()
    assert len(calls) == MOST_COMBINATIONS + 1
    assert calls[f'calls_total{{model="{OTHER}",project="{OTHER}",source=""}}'] == 50
    assert calls[f'calls_total{{model="{OPUS}",project="p0",source=""}}'] == 2


def test_u4_what_was_settled_counts_at_once_or_with_the_end_of_its_lease():
    counted = Counted()
    ticket = Ticket("run-1", Spec(project="web"), ME, 0, 0, 0, 0, 0)
    counted.leases["run-1"] = Lease(ticket, OPUS, 0, 0)
    counted.usage.settled(ev.Settled("run-1", Usage(calls=2)))
    counted.usage.settled(ev.Settled("run-2", Usage(calls=4)))  # the feed is behind: its lease has ended
    web = f'calls_total{{model="{OPUS}",project="web",source=""}}'
    assert counted.calls() == {web: 2}
    counted.usage.ended(released("run-2", "web", None))
    assert counted.calls() == {web: 6}


def test_u4_a_call_that_was_refused_makes_no_counter():
    counted = Counted()
    counted.usage.ended(released("a", "web", Usage(source=RESPONSE)))
    assert counted.calls() == {}


def test_u4_usage_is_counted_by_access_key_and_keys_beyond_a_limit_together():
    counted = Counted()
    for number in range(MOST_KEYS + 2):
        event = ev.Released("x", "ok", OPUS, 0, 0, usage=Usage(1, 2, cost=1_000_000), access_key=f"k{number}")
        counted.usage.ended(event)
    counted.usage.ended(ev.Released("x", "ok", OPUS, 0, 0, usage=Usage(1)))
    lines = counted.lines()
    calls = [line for line in lines if line.startswith("key_calls_total{")]
    assert len(calls) == MOST_KEYS + 1
    assert f'key_calls_total{{key="{OTHER}"}} 2.0' in calls
    assert 'key_tokens_total{key="k0"} 2.0' in lines
    assert 'key_cost_total{key="k0"} 1.0' in lines
