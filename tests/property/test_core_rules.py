"""Rules of all kinds together (hypothesis): `needs` against the model, and `find` against `needs`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetgate.core.entities import Rule, Spec
from fleetgate.core.model_names import glob, parse_model, parse_selector
from fleetgate.core.pools.effective_caps import UNLIMITED, Rules
from fleetgate.core.queue.order import order_key
from tests.property import model as simple

words = st.sampled_from(["umans", "umans", "anthropic", "work", "m", "x"])
accounts = st.sampled_from(["", "", "@work", "@default", "@x"])
names = st.sampled_from(["m", "x", "m:x", "m:umans", "a/m", "claude-opus-4-6", "claude-opus-4-6:x"])
models = st.builds(lambda provider, account, name: f"{provider}{account}/{name}", words, accounts, names)
selectors = st.one_of(
    st.sampled_from(["umans", "umans@work", "umans@default"]),
    st.sampled_from(
        ["host", "project", "key", "key:ci", "*", "*/claude-opus-*", "umans", "umans@work", "umans@default"]
    ),
    st.builds(
        lambda provider, account, name: f"{provider}{account}{name}",
        st.one_of(words, st.sampled_from(["*", "u*", "*s"])),
        st.sampled_from(["", "", "@work", "@default", "@*", "@w*"]),
        st.sampled_from(["", "/m", "/*", "/m:*", "/m:x", "/m:umans", "/claude-opus-*", "/a/m"]),
    ),
)
kinds = st.sampled_from(["agents", "requests"])
rules = st.builds(
    Rule,
    kind=kinds,
    selector=selectors,
    cap=st.one_of(st.none(), st.integers(1, 9)),
    cooldown_ms=st.sampled_from([None, 0, 7]),
    max_hold_ms=st.sampled_from([None, 0, 9]),
    unlimited=st.sampled_from([False, False, False, True]),
).map(lambda rule: Rule(rule.kind, rule.selector, unlimited=True) if rule.unlimited else rule)
sources = st.lists(rules, max_size=5, unique_by=lambda rule: (rule.kind, rule.selector))
specs = st.builds(
    Spec,
    models=models.map(lambda model: (model,)),
    kind=kinds,
    host=st.sampled_from(["", "h1"]),
    project=st.sampled_from(["", "p1"]),
    access_key=st.sampled_from(["", "ci", "bob"]),
    supervisor=st.booleans(),
    caps=st.lists(st.tuples(selectors, st.integers(1, 9)), max_size=2, unique_by=lambda own: own[0]).map(tuple),
    family_caps=st.sampled_from([(), (("opus", 5),)]),
)


def both(file: list[Rule], runtime: list[Rule], seen: list[tuple[str, str]]) -> tuple[Rules, simple.Book]:
    made, book = Rules(), simple.Book([])
    made.file = book.file = {(rule.kind, rule.selector): rule for rule in file}
    made.runtime = book.runtime = {(rule.kind, rule.selector): rule for rule in runtime}
    made.seen, book.seen = dict.fromkeys(seen), set(seen)
    made.merge()
    return made, book


@given(file=sources, runtime=sources, seen=st.lists(st.tuples(kinds, selectors), max_size=2), spec=specs)
def test_c2_c4_n3_the_pools_and_limits_of_a_request_are_what_the_model_says(file, runtime, seen, spec):
    made, book = both(file, runtime, seen)
    needs = made.needs(spec, parse_model(spec.models[0]))
    assert len({need.pool for need in needs}) == len(needs)
    expected = book.limits(spec, spec.models[0])
    assert {need.pool for need in needs} == set(expected)
    for need in needs:
        limit = expected[need.pool].limit
        assert need.most == (UNLIMITED if limit is None else limit), need.pool
        group = book.groups(spec, spec.models[0])[need.pool]
        default = simple.default_cooldown_ms(spec.kind, group)
        assert need.cap.cooldown_ms == book.option(spec.kind, group, "cooldown_ms", default)
        assert need.cap.max_hold_ms == book.option(spec.kind, group, "max_hold_ms", simple.MAX_HOLD_MS[spec.kind])
    narrowness = [need.cap.selector.narrowness for need in needs]
    assert narrowness == sorted(narrowness), "the narrowest first"


@given(file=sources, runtime=sources, seen=st.lists(st.tuples(kinds, selectors), max_size=2), spec=specs)
def test_a_pool_found_by_its_name_is_the_one_that_requests_need(file, runtime, seen, spec):
    """Whatever a request needs, once its environment is counted, can be named; and everybody means the same by it."""
    made, _ = both(file, runtime, [*seen, *((spec.kind, text) for text, _ in spec.caps)])
    for need in made.needs(spec, parse_model(spec.models[0])):
        found = made.find(spec.kind, need.pool)
        assert found is not None, need.pool
        assert (found.cap, found.account, found.host, found.project) == (
            need.cap,
            need.account,
            need.host,
            need.project,
        )


@given(file=sources, seen=st.lists(st.tuples(kinds, selectors), max_size=2), one=specs, other=specs)
def test_two_requests_that_need_a_pool_of_the_same_name_mean_the_same(file, seen, one, other):
    made, book = both(file, [], seen)
    ones = {need.pool: need for need in made.needs(one, parse_model(one.models[0]))}
    others = {need.pool: need for need in made.needs(other, parse_model(other.models[0]))}
    if one.kind != other.kind:
        return
    for pool in ones.keys() & others.keys():
        own = {text for text, _ in (*one.caps, *other.caps)}
        if not own:
            assert ones[pool].cap == others[pool].cap
        assert ones[pool].account == others[pool].account


@given(
    file=sources,
    kind=kinds,
    name=st.one_of(
        selectors, models, st.text("um@*/:xw ", max_size=8), st.builds(lambda a, b: f"{a}:{b}", selectors, models)
    ),
)
def test_a_name_that_is_found_is_one_that_some_request_needs(file, kind, name):
    made, _ = both(file, [], [])
    found = made.find(kind, name)
    if found is None:
        return
    assert found.cap.capped
    if found.cap.selector.scope != "model":
        assert name.startswith(("host:", "project:", "key:"))
        return
    selector = found.cap.selector
    provider = "any" if "*" in selector.provider else selector.provider
    account = (selector.account or "default").replace("*", "x")
    if found.account and not selector.account:
        model = parse_model(f"{found.account}/any")
        provider, account = model.provider, model.account
    elif "*" in selector.provider:
        provider = selector.provider.replace("*", "x")
    example = f"{provider}@{account}/{(selector.name or 'any').replace('*', 'x')}"
    assert parse_selector(selector.text).matches(parse_model(example))
    assert simple.pool_of(selector.text, Spec(), example) == name


@given(pattern=st.text("ab*", max_size=6), text=st.text("ab", max_size=8))
def test_n2_globs_mean_what_regular_expressions_mean(pattern, text):
    assert glob(pattern, text) == simple.glob(pattern, text)


@given(
    since=st.integers(0, 10**13),
    priority=st.integers(-100, 100),
    later=st.integers(0, 10**9),
    seniority_ms=st.one_of(st.none(), st.integers(0, 10**7)),
)
def test_a4_a_key_is_never_negative_and_nothing_overtakes_beyond_the_stated_bound(since, priority, later, seniority_ms):
    queued_at = since
    key = order_key(since, 0, queued_at, seniority_ms)
    assert key >= 0
    overtaker = order_key(0, priority, queued_at + later, seniority_ms)
    if seniority_ms is not None and later > seniority_ms + 12_000 * max(priority, 0):
        assert overtaker >= key
