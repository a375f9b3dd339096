"""What the environment says, and what is said about it when it is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.config.environment import Environment
from fleetgate.config.errors import ConfigError
from fleetgate.config.paths import config_path, state_folder, store_url
from fleetgate.core.model_names import parse_selector
from tools.gen_config_docs import VARIABLES


def refusal(**environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Environment.read(environ)
    return str(caught.value)


def test_c3_an_empty_environment_says_nothing() -> None:
    assert Environment.read({}) == Environment()
    assert Environment.read(dict.fromkeys(VARIABLES, "")) == Environment()
    assert Environment().caps_for("agents") == Environment().caps_for("requests") == ((), ())


def test_c3_caps_are_read_by_kind() -> None:
    environment = Environment.read(
        {"FLEETGATE_AGENTS": "host=5,anthropic/claude-opus-*=6", "FLEETGATE_REQUESTS": " umans = 4 , "}
    )
    assert environment.caps_for("agents") == ((("host", 5), ("anthropic/claude-opus-*", 6)), ())
    assert environment.caps_for("requests") == ((("umans", 4),), ())


def test_c3_the_opus_cap_of_aidevops_is_for_every_agents_cap_on_opus() -> None:
    environment = Environment.read({"AIDEVOPS_OPUS_CONCURRENCY_CAP": "6", "FLEETGATE_AGENTS": "host=9"})
    assert environment.caps_for("agents") == ((("host", 9),), (("opus", 6),))
    assert environment.caps_for("requests") == ((), ())


def test_c3_models_and_providers_are_lists() -> None:
    environment = Environment.read({"FLEETGATE_MODELS": "a/b, c@default/d,e@x/f/g", "FLEETGATE_PROVIDERS": "a,c"})
    assert (environment.models, environment.models_from) == (("a/b", "c/d", "e@x/f/g"), "FLEETGATE_MODELS")
    assert (environment.providers, environment.providers_from) == (("a", "c"), "FLEETGATE_PROVIDERS")
    assert [environment.allows(model) for model in environment.models] == [True, True, False]
    assert Environment().allows("any/thing")


def test_c3_fleetgates_own_variables_win_over_those_of_aidevops() -> None:
    theirs = {"AIDEVOPS_HEADLESS_MODELS": "a/b", "AIDEVOPS_HEADLESS_PROVIDER_ALLOWLIST": "a"}
    environment = Environment.read(theirs)
    assert (environment.models, environment.providers) == (("a/b",), ("a",))
    assert environment.models_from == "AIDEVOPS_HEADLESS_MODELS"
    environment = Environment.read({**theirs, "FLEETGATE_MODELS": "c/d", "FLEETGATE_PROVIDERS": "c"})
    assert (environment.models, environment.providers) == (("c/d",), ("c",))


@pytest.mark.parametrize(("value", "on"), [("1", True), ("true", True), ("YES", True), ("0", False), ("off", False)])
def test_c3_flags_are_on_or_off(value: str, on: bool) -> None:
    environment = Environment.read({"FLEETGATE_BYPASS": value, "FLEETGATE_SANDBOX_DISABLED": value})
    assert (environment.bypass, environment.sandbox_disabled) == (on, on)


def test_h5_the_token_is_never_held() -> None:
    environment = Environment.read({"FLEETGATE_TOKEN": "hunter2"})
    assert environment.has_token
    assert "hunter2" not in repr(environment)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("host=5,umans", "'umans'"),
        ("host=0", "'host=0'"),
        ("host=-1", "'host=-1'"),
        ("host=", "'host='"),
        ("=5", "'=5'"),
        ("host=true", "'host=true'"),
        ("host=auto", "'host=auto'"),
        ("host=4.0", "'host=4.0'"),
        ("host=٣", "'host=٣'"),
        ("host=²", "'host=²'"),
        ("host=5=6", "'host=5=6'"),
        ("host=" + "9" * 5000, "'host=999"),
        ("a b=3", "'a b=3'"),
        ("hots=3", "'hots=3'"),
        ("host=3,host=4", "'host=4'"),
        ("host=3;umans=4", "'host=3;umans=4'"),
    ],
)
def test_c3_nonsense_names_the_variable_and_the_bad_part(value: str, part: str) -> None:
    assert refusal(FLEETGATE_AGENTS=value).startswith(f"FLEETGATE_AGENTS: {part}")
    assert refusal(FLEETGATE_REQUESTS=value).startswith(f"FLEETGATE_REQUESTS: {part}")


@pytest.mark.parametrize("value", ["0", "-4", "four", "4,5", "4.5", "1000001", "10;rm -rf /"])
def test_c3_a_bad_opus_cap_is_refused(value: str) -> None:
    assert "AIDEVOPS_OPUS_CONCURRENCY_CAP: found " in refusal(AIDEVOPS_OPUS_CONCURRENCY_CAP=value)


def test_c3_all_that_is_wrong_is_told_at_once() -> None:
    told = refusal(
        FLEETGATE_AGENTS="x,host=0", FLEETGATE_MODELS="nope", FLEETGATE_PROVIDERS="a/b", FLEETGATE_BYPASS="perhaps"
    ).splitlines()
    assert [line.partition(":")[0] for line in told] == [
        *("FLEETGATE_AGENTS", "FLEETGATE_AGENTS", "FLEETGATE_MODELS", "FLEETGATE_PROVIDERS", "FLEETGATE_BYPASS"),
    ]


def test_c3_a_variable_that_loses_is_not_complained_about() -> None:
    assert Environment.read({"AIDEVOPS_HEADLESS_MODELS": "nope", "FLEETGATE_MODELS": "a/b"}).models == ("a/b",)


class Recording(Mapping[str, str]):
    """An environment that remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        if name == "HOME":
            return "/home/ada"
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_c3_every_variable_that_is_read_is_documented_and_the_other_way_round() -> None:
    environ = Recording()
    Environment.read(environ)
    state_folder(environ)
    config_path(environ)
    store_url(environ)
    own = {name for name in environ.asked if name.startswith(("FLEETGATE_", "AIDEVOPS_"))}
    elsewhere = {"FLEETGATE_HOST"}  # read where processes are named
    elsewhere |= {"FLEETGATE_SERVICE", "FLEETGATE_KEY"}  # and where a service elsewhere is asked
    assert own | elsewhere == set(VARIABLES)


NEAR = st.lists(
    st.tuples(
        st.sampled_from(["host", "project", "a", "a/b", "*/x-*", "a@b", "a@*/c", "", " ", "hots", "=", "@"])
        | st.text(),
        st.sampled_from(["=", " = ", "", "=="]),
        st.integers(-2, 10**7).map(str) | st.text(max_size=5),
    ).map("".join)
).map(",".join)


@given(NEAR | st.text())
def test_q1_any_text_is_caps_or_a_config_error(text: str) -> None:
    try:
        caps, families = Environment.read({"FLEETGATE_AGENTS": text}).caps_for("agents")
    except ConfigError as refused:
        problems = refused.problems
        assert problems
        assert {problem.where for problem in problems} == {"FLEETGATE_AGENTS"}
        return
    assert families == ()
    assert len({selector for selector, _ in caps}) == len(caps)
    for selector, cap in caps:
        assert parse_selector(selector).text == selector
        assert 1 <= cap <= 1_000_000


@given(st.dictionaries(st.sampled_from(sorted(VARIABLES)), st.text()))
def test_q1_any_environment_is_read_or_a_config_error(environ: dict[str, str]) -> None:
    for read in (Environment.read, store_url, state_folder):
        try:
            read({"HOME": "/h", **environ})
        except ConfigError as refused:
            problems = refused.problems
            assert problems


@pytest.mark.parametrize(("value", "skips"), [("1", True), ("true", True), ("0", False)])
def test_the_switch_of_the_sandbox_is_understood_by_its_other_name(value, skips):
    assert Environment.read({"AIDEVOPS_HEADLESS_SANDBOX_DISABLED": value}).sandbox_disabled is skips
    both = {"AIDEVOPS_HEADLESS_SANDBOX_DISABLED": value, "FLEETGATE_SANDBOX_DISABLED": "0"}
    assert not Environment.read(both).sandbox_disabled, "our own name wins"
