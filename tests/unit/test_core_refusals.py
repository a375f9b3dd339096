"""Q1: a command that cannot be raises with a sentence that helps, and changes nothing."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import BadName, BadRequest, FleetgateError, NotFound
from tests.property.harness import CODER, SONNET, Bench


def asking(spec: Spec, **said: int) -> cmd.Acquire:
    return cmd.Acquire("new", spec, "p", **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "error", "says"),
    [
        (asking(Spec(models=("nonsense",))), BadName, "not a model: 'nonsense'"),
        (asking(Spec(kind="cats")), BadRequest, "valid are agents and requests"),
        (asking(Spec(work_class="urgent")), BadRequest, "valid are interactive, normal, batch"),
        (asking(Spec(slots=0)), BadRequest, "0 slots: valid is 1 to 10000"),
        (asking(Spec(slots=10_001)), BadRequest, "10001 slots"),
        (asking(Spec(caps=(("a b", 1),))), BadName, "not a selector"),
        (asking(Spec(caps=(("brand-new", 1), ("umans", 0)))), BadRequest, "cap 0 for umans: valid is 1"),
        (asking(Spec(family_caps=(("opus", -1),))), BadRequest, "cap -1 for opus"),
        (asking(Spec(models=(SONNET,), host="h1", slots=4)), BadRequest, "needs 4 slots of host:h1, whose cap is 3"),
        (asking(Spec(caps=(("brand-new", 1),)), priority=101), BadRequest, "priority 101: valid is -100 to 100"),
        (asking(Spec(caps=(("brand-new", 1),)), expires_ms=-1), BadRequest, "expires after -1 ms"),
        (cmd.Claim("nobody"), NotFound, "no lease nobody: it was reclaimed or never granted"),
        (cmd.Reclaim("nobody", "me"), NotFound, "fleetgate ps"),
        (cmd.Cancel("nobody"), NotFound, "fleetgate queue"),
        (cmd.Cancel("runs"), NotFound, "fleetgate queue"),
        (cmd.Bump("nobody"), NotFound, "fleetgate queue"),
        (cmd.Bump("waits", priority=-101), BadRequest, "priority -101"),
        (cmd.Report("nobody"), NotFound, "fleetgate ps"),
        (cmd.Report(kind="cats", target=CODER), NotFound, "of kind cats"),
        (cmd.Report(kind="agents", target="host:h1"), NotFound, "no capped provider pool"),
        (cmd.Report(kind="agents", target="a/b c"), BadName, "not a model"),
        (cmd.Pause("agents", "nobody"), NotFound, "capped are: host:h1"),
        (cmd.Pause("agents", "host:h1", 0), BadRequest, "a pause of 0 ms"),
        (cmd.Resume("requests", "nobody"), NotFound, "fleetgate cap set"),
        (cmd.ResetCap("agents", "umans"), NotFound, "nothing was set at run time for umans"),
        (cmd.RemoveCap("cats", "umans"), BadRequest, "kind 'cats'"),
        (cmd.RemoveCap("agents", "a b"), BadName, "not a selector"),
        (cmd.SetRule(Rule("agents", "", cap=1)), BadName, "not a selector"),
        (cmd.SetRule(Rule("agents", "host", cap=0)), BadRequest, "valid is 1 to 1000000"),
        (cmd.SetRule(Rule("agents", "umans", auto=True)), BadRequest, "only host can be automatic"),
        (cmd.SetRule(Rule("agents", "host", cooldown_ms=-1)), BadRequest, "cooldown -1 ms"),
        (cmd.SetRule(Rule("agents", "host", on_429="cry")), BadRequest, "valid are adapt, step, pause, fixed"),
        (cmd.SetRule(Rule("agents", "umans", on_429="adapt")), BadRequest, "learned from model calls"),
        (cmd.SetRule(Rule("agents", "host", max_hold_ms=-1)), BadRequest, "max_hold -1 ms"),
        (
            cmd.LoadFile("f", "d", 99, (Rule("agents", "host", cap=1), Rule("agents", "host", cap=-1))),
            BadRequest,
            "cap -1",
        ),
        (cmd.Observe("h1", ((CODER, 1), ("nonsense", 1))), BadName, "not a model"),
        (cmd.Observe("h1", ((CODER, 0),)), BadRequest, "0 foreign agents of 'umans/coder'"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_q1_an_illegal_command_raises_and_changes_nothing(command, error, says):
    bench = Bench(agents={"host": 3})
    bench.agent("runs", SONNET, slots=3)
    bench.agent("waits", SONNET)
    before, due = bench.state.export(), bench.engine.next_deadline()
    with pytest.raises(error) as caught:
        bench.engine.handle(command, bench.now)
    assert isinstance(caught.value, FleetgateError)
    assert says in str(caught.value)
    assert bench.state.export() == before
    assert bench.engine.next_deadline() == due
    assert bench.engine.handle(cmd.Tick(), bench.now) == []


def test_q1_a_refused_report_does_not_make_its_kind_a_valid_one():
    bench = Bench()
    with pytest.raises(NotFound):
        bench.do(cmd.Report(kind="cats", target=CODER))
    with pytest.raises(BadRequest, match="valid are agents and requests"):
        bench.do(asking(Spec(models=(CODER,), kind="cats")))
