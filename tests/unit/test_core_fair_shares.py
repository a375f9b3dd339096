"""W6: the part of each pool that projects and keys have, next to what their weights entitle them to."""

from __future__ import annotations

from fleetgate.core import commands as cmd
from fleetgate.core.access.keys import AccessKey, CreateKey
from fleetgate.core.entities import Rule
from fleetgate.core.views.share_views import FairShares, PoolShare
from tests.property.harness import CODER, SECOND, SONNET, Bench


def shares(bench: Bench, project: str) -> dict[str, PoolShare]:
    return {share.pool: share for share in FairShares(bench.state).of_projects.get(project, [])}


def test_w6_a_fair_share_goes_by_the_weights_of_the_projects_that_are_active():
    bench = Bench()
    rules = (Rule("requests", "umans", cap=4, on_429="step"),)
    bench.do(cmd.LoadFile("config.toml", "w", 2, rules, weights=(("web", 3), ("idle", 96))))
    for number in range(4):
        bench.call(f"docs{number}", CODER, project="docs")
    assert shares(bench, "docs") == {}, "it shares the pool with no other project"
    bench.call("web", CODER, project="web")
    assert shares(bench, "web") == {"umans": PoolShare("umans", "requests", 0, 4, 3, 4)}
    docs = shares(bench, "docs")["umans"]
    assert (docs.part, docs.entitled, docs.shortage) == (1.0, 0.25, -0.75)
    bench.release("docs0")
    bench.wait(SECOND)
    assert shares(bench, "web")["umans"].part == 0.25


def test_w6_the_pool_where_a_project_is_the_shortest_comes_first_and_unlimited_ones_are_left_out():
    bench = Bench(agents={"host": 4, "anthropic": 2})
    bench.agent("a", SONNET, project="docs")
    bench.agent("b", SONNET, project="docs")
    bench.agent("c", project="web")
    bench.agent("d", SONNET, project="web")
    assert [share.pool for share in FairShares(bench.state).of_projects["web"]] == ["anthropic", "host:h1"]
    bench.do(cmd.RemoveCap("agents", "anthropic"))
    assert list(shares(bench, "web")) == ["host:h1"]


def test_w6_a_key_is_entitled_to_the_share_of_its_project():
    bench = Bench(requests={"umans": 4})
    for name in ("lead", "helper"):
        bench.do(CreateKey(AccessKey(name, "d", "agent", "web")))
    bench.do(CreateKey(AccessKey("ops", "d", "operator")))
    bench.call("a", CODER, project="web", access_key="lead")
    bench.call("b", CODER, project="web", access_key="lead")
    bench.call("c", CODER, project="web", access_key="helper")
    bench.call("d", CODER, project="docs", access_key="ops")
    found = FairShares(bench.state).of_keys
    assert {name: (each.part, each.entitled) for name, (each,) in found.items()} == {
        "lead": (0.5, 0.5),
        "helper": (0.25, 0.5),
    }, "a key without a project has no share"
