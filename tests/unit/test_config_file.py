"""The config file: what it says, and what is said about it when it is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.config.errors import ConfigError, ConfigProblem
from fleetgate.config.file import LARGEST_FILE, check, load
from fleetgate.config.settings import HostAuto, Provider, Settings
from fleetgate.core.entities import Rule

FROM_C1 = """\
models = ["anthropic/claude-sonnet-4-6", "openai/gpt-5"]   # candidates where a command names none

[agents]                            # agent processes at once
host = 3
"anthropic/claude-opus-*" = 4
"anthropic/claude-sonnet-*" = 24

[requests]                          # model calls in flight at once
umans = { cap = 4, cooldown = "350ms", on_429 = "step", usage_gate = true }

[providers.umans]
base_url = "https://api.umans.ai/v1"
key_env = "UMANS_API_KEY"           # or credential_file = "…"
api = "openai"
usage_path = "/usage"
usage_field = "usage.concurrent_sessions"
"""


def problems(text: str) -> list[ConfigProblem]:
    with pytest.raises(ConfigError) as caught:
        check(text, "config.toml")
    return list(caught.value.problems)


def problem(text: str) -> str:
    found = problems(text)
    assert len(found) == 1, found
    return str(found[0])


def test_c1_the_file_of_the_specification_says_what_it_says() -> None:
    assert check(FROM_C1, "config.toml") == Settings(
        models=("anthropic/claude-sonnet-4-6", "openai/gpt-5"),
        rules=(
            Rule("agents", "host", cap=3),
            Rule("agents", "anthropic/claude-opus-*", cap=4),
            Rule("agents", "anthropic/claude-sonnet-*", cap=24),
            Rule("requests", "umans", cap=4, cooldown_ms=350, on_429="step", usage_gate=True),
        ),
        providers={
            "umans": Provider(
                base_url="https://api.umans.ai/v1",
                key_env="UMANS_API_KEY",
                usage_path="/usage",
                usage_field="usage.concurrent_sessions",
            )
        },
    )


def test_c1_an_empty_file_says_what_no_file_says() -> None:
    assert check("", "x") == check("# nothing\n[agents]\n[run]\n", "x") == Settings()


def test_c1_a_table_with_a_header_is_the_same_as_one_in_braces() -> None:
    braces = check('[requests]\n"a/b" = { cap = 2, cooldown = 1 }', "x")
    assert check('[requests."a/b"]\ncap = 2\ncooldown = 1', "x") == braces
    assert check('requests."a/b".cap = 2\nrequests."a/b".cooldown = "1s"', "x") == braces


def test_n1_models_are_kept_by_their_own_names() -> None:
    assert check('models = ["a@default/b", "a@work/b/c"]', "x").models == ("a/b", "a@work/b/c")


def test_a4_seniority_is_a_duration_and_off_by_default() -> None:
    assert Settings().seniority_ms is None
    assert check('seniority = "10m"', "x").seniority_ms == 600_000
    assert check("seniority = 0", "x").seniority_ms == 0


def test_a13_patterns_of_the_census_are_kept_in_order() -> None:
    text = "[[census]]\nmatch = 'opencode.*-m (?P<model>\\S+)'\n[[census]]\nmatch = 'aider'"
    assert check(text, "x").census == (r"opencode.*-m (?P<model>\S+)", "aider")


def test_r7_a_command_to_wrap_agents_in_is_kept_as_it_is() -> None:
    assert check('run.wrap = ["bwrap", "$HOME", "a b"]', "x").wrap == ("bwrap", "$HOME", "a b")
    assert check("run.wrap = []", "x").wrap == ()


def test_history_is_kept_for_thirty_days_unless_the_file_says_otherwise() -> None:
    assert Settings().keep_ms == 30 * 86_400_000
    assert check('history.keep = "2d"', "x").keep_ms == 2 * 86_400_000


def test_k3_a_table_without_a_cap_remembers_its_cooldown() -> None:
    assert check('[requests]\na = { cooldown = "1s" }', "x").rules == (Rule("requests", "a", cooldown_ms=1000),)


def test_l5_a_longest_hold_of_zero_is_kept_as_none_at_all() -> None:
    assert check("[requests]\na = { cap = 1, max_hold = 0 }", "x").rules == (
        Rule("requests", "a", cap=1, max_hold_ms=0),
    )


def test_a6_a_cap_may_have_a_name() -> None:
    assert check('[agents]\nproject = { cap = 2, name = "team" }', "x").rules == (
        Rule("agents", "project", cap=2, name="team"),
    )


def test_g1_usage_gates_are_part_of_the_rules() -> None:
    text = '[agents]\n"a/*" = { usage_gate = true }\n[requests]\na = { cap = 1, usage_gate = true }\n'
    assert check(text + "b = { cap = 1, usage_gate = false }", "x").rules == (
        Rule("agents", "a/*", usage_gate=True),
        Rule("requests", "a", cap=1, usage_gate=True),
        Rule("requests", "b", cap=1, usage_gate=False),
    )


def test_c7_the_hosts_cap_may_follow_memory() -> None:
    auto = (Rule("agents", "host", auto=True),)
    plain = check('agents.host = "auto"', "x")
    assert (plain.rules, plain.host_auto) == (auto, HostAuto(6 * 1024**3, 512 * 1024**2, 8))
    own = check('agents.host = { cap = "auto", reserve = "2GiB", per_agent = "1G", max = 20 }', "x")
    assert (own.rules, own.host_auto) == (auto, HostAuto(2 * 1024**3, 1024**3, 20))


def test_c7_the_parameters_of_auto_are_refused_with_another_cap() -> None:
    for cap in ("cap = 3, ", ""):
        assert 'agents.host.reserve: reserve is valid only with cap = "auto"' in problem(
            f'agents.host = {{ {cap}reserve = "1GiB" }}'
        )
    assert 'found true; valid is a whole number from 1 to 1000000, or "auto"' in problem(
        "agents.host = { cap = true, max = 3 }"
    )


@pytest.mark.parametrize("selector", ["requests.host", "agents.project", 'agents."a/b"'])
def test_c7_only_the_hosts_agents_may_be_auto(selector: str) -> None:
    assert "found 'auto'; valid is a whole number" in problem(f'{selector} = "auto"')


@pytest.mark.parametrize(
    "cap", ["0", "-1", "true", "false", "4.0", "nan", "inf", '"4"', "[4]", "1000001", "9" * 30, "2026-01-01"]
)
def test_c6_a_cap_is_a_whole_number_of_at_least_one(cap: str) -> None:
    for text in (f"[agents]\nhost = {cap}", f'[agents]\n"a/b" = {cap}', f"[requests]\na = {{ cap = {cap} }}"):
        told = problem(text)
        assert told.startswith("config.toml:2: ")
        assert "; valid is a whole number from 1 to 1000000" in told


def test_p4_adapt_is_for_model_calls_alone() -> None:
    assert 'config.toml:2: agents.a.on_429: found "adapt"; a limit is learned from model calls' in problem(
        '[agents]\na = { cap = 1, on_429 = "adapt" }'
    )


def test_p4_a_cap_says_what_a_refusal_costs() -> None:
    (rule,) = check('[requests]\na = { cap = 1, refusals = "expensive" }', "config.toml").rules
    assert rule == Rule("requests", "a", cap=1, refusals="expensive")
    assert (
        problem('[requests]\na = { cap = 1, refusals = "free" }')
        == "config.toml:2: requests.a.refusals: found 'free'; valid is "
        '"cheap", "normal" or "expensive"'
    )


@pytest.mark.parametrize(
    "text",
    ['requests.a = { cap = 1, on_429 = "step", refusals = "cheap" }', 'agents.a = { cap = 1, refusals = "cheap" }'],
)
def test_p4_what_a_refusal_costs_is_said_only_where_a_limit_is_learned(text: str) -> None:
    assert 'the price of a refusal matters where the limit is learned: in requests, with on_429 = "adapt"' in problem(
        text
    )


def test_p1_a_rate_limit_never_acts_on_host_or_project() -> None:
    assert "it does not belong here but at agents.SELECTOR.on_429" in problem('agents.host = { on_429 = "step" }')


def test_c6_a_syntax_error_names_file_and_line() -> None:
    assert problem("models = []\nhost == 3").startswith("config.toml:2: not valid TOML: Invalid value")
    assert problem("models = [\n\n").startswith("config.toml:3: not valid TOML: ")
    assert problem("a = 1\n\na = 2") == "config.toml:3: not valid TOML: Cannot overwrite a value"


def test_c6_the_usual_slips_of_toml_get_a_hint() -> None:
    quoted_name = 'names with / * @ or : are written in quotes, like "anthropic/claude-opus-*" = 4'
    assert quoted_name in problem("[agents]\nanthropic/claude-opus-* = 4")
    quoted_value = 'text is written in quotes, like "350ms" or "auto"'
    assert quoted_value in problem("[agents]\nhost = auto")
    assert quoted_value in problem("[requests]\na = { cap = 1 }\nb = 350ms")


def test_c6_an_unknown_key_names_the_nearest_known_one() -> None:
    assert problem('modles = ["a/b"]').startswith(
        "config.toml:1: modles: unknown key; did you mean models? (valid here:"
    )
    assert "agents.host.cooldwon: unknown key; did you mean cooldown?" in problem("[agents]\nhost = {cooldwon = 1}")
    assert "history.keeep: unknown key; did you mean keep?" in problem("[history]\nkeeep = 3")
    assert "requests.a.limit: unknown key; did you mean cap?" in problem("[requests.a]\nlimit = 3")
    assert "zzz: unknown key; the nearest known one is " in problem("zzz = 1")


def test_c6_a_key_in_the_wrong_place_is_told_where_it_belongs() -> None:
    assert "it does not belong here but at agents.SELECTOR.cooldown or requests.SELECTOR.cooldown" in problem(
        'cooldown = "1s"'
    )
    assert "agents.cap: 'cap' is an option of a cap, not a selector" in problem("[agents]\ncap = 3")
    assert "it does not belong here but at run.wrap" in problem("wrap = []")


@pytest.mark.parametrize(
    ("slip", "meant"), [("hots", "host"), ("hosts", "host"), ("Host", "host"), ("projct", "project")]
)
def test_c6_a_slip_in_host_or_project_is_not_taken_for_a_provider(slip: str, meant: str) -> None:
    assert f"'{slip}': did you mean {meant}? (a provider really called so: '{slip}/*')" in problem(f"agents.{slip} = 3")
    assert check(f'agents."{slip}/*" = 3', "x").rules == (Rule("agents", f"{slip}/*", cap=3),)


@pytest.mark.parametrize("selector", ["", "a b", "a/", "/b", "@x", "a\\u0000", "a" * 300])
def test_n2_what_is_no_selector_is_refused_with_what_is_valid(selector: str) -> None:
    assert "not a selector: " in problem(f'agents."{selector}" = 3')


def test_c6_all_problems_are_told_at_once_each_with_its_line() -> None:
    told = problems(
        'models = ["ok/ok",\n  "bad"]\nseniority = "soon"\n\n[agents]\nhost = 0\n"*/x" = { cap = 0,  on_429 = "no" }\n'
        "[run]\nwrap = 'bwrap'\n[[census]]\nmatch = 'a'\n[[census]]\nmatch = '('\nextra = 1\n[[census]]\n"
    )
    assert [(problem.line, problem.key) for problem in told] == [
        (1, "models[1]"),
        (3, "seniority"),
        (6, "agents.host"),
        (7, "agents.'*/x'.cap"),
        (7, "agents.'*/x'.on_429"),
        (9, "run.wrap"),
        (13, "census[1].match"),
        (14, "census[1].extra"),
        (15, "census[2]"),
    ]
    assert all(problem.where == "config.toml" for problem in told)


@pytest.mark.parametrize(
    "text", ["agents = 3", "requests = []", "providers = 'x'", "census = {}", "run = 1", "[run.wrap]"]
)
def test_c6_another_shape_than_expected_is_a_problem(text: str) -> None:
    assert "found " in problem(text)


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("(", "does not compile"),
        ("(" * 500, "does not compile"),
        ("x{99999999999}", "does not compile"),
        ("(?P<modle>x)", "found a group named 'modle'; the only named group is (?P<model>…)"),
        ("x*", "matches every process"),
        ("", "matches every process"),
    ],
)
def test_a13_a_bad_pattern_is_a_problem(pattern: str, sentence: str) -> None:
    assert sentence in problem(f"[[census]]\nmatch = '{pattern}'")


def test_a13_a_pattern_that_python_warns_about_is_taken() -> None:
    assert check("[[census]]\nmatch = '[[a]'", "x").census == ("[[a]",)


def test_x1_a_provider_speaks_its_own_api_unless_the_file_says_otherwise() -> None:
    text = "[providers.anthropic]\n[providers.google]\n[providers.umans]\n[providers.x]\napi = 'gemini'\n"
    apis = {name: provider.api for name, provider in check(text, "x").providers.items()}
    assert apis == {"anthropic": "anthropic", "google": "gemini", "umans": "openai", "x": "gemini"}


def test_g1_a_base_url_and_a_usage_path_join_without_a_second_slash() -> None:
    text = "[providers.x]\nbase_url = 'http://localhost:1/v1/'\nusage_path = '/u'\nusage_field = 'a'"
    provider = check(text, "x").providers["x"]
    assert provider.base_url + provider.usage_path == "http://localhost:1/v1/u"


@pytest.mark.parametrize(
    "url", ["api.umans.ai", "ftp://a", "https://", "https:///v1", "http://:", "http://a b", "3", ""]
)
def test_c6_a_base_url_is_an_http_address(url: str) -> None:
    assert "valid is an http or https URL" in problem(f"[providers.x]\nbase_url = '{url}'")


@pytest.mark.parametrize(
    "line",
    [
        "key_env = 'sk-hunter2'",
        "key_env = '2hunter2'",
        "api_key = 'hunter2'",
        "base_url = 'https://me:hunter2@host/v1'",
        "base_url = 'https://host/v1?key=hunter2'",
        "base_url = 'https://host/v1#hunter2'",
        "key_env = 'hunter2",
        "key_env = hunter2",
        "key_env = [ 'hunter2' ]",
    ],
)
def test_x5_a_key_that_was_put_into_the_file_is_never_shown(line: str) -> None:
    assert "hunter2" not in problem(f"[providers.x]\n{line}")


def test_x5_a_key_put_into_the_file_is_told_where_to_go() -> None:
    assert "api_key: unknown key; did you mean key_env?" in problem("[providers.x]\napi_key = 'x'")


def test_c6_keys_of_a_provider_that_do_not_go_together_are_problems() -> None:
    both = problem("[providers.x]\nkey_env = 'A'\ncredential_file = '/a'")
    assert "config.toml:3: providers.x.credential_file: key_env is set too; use one of the two" in both
    half = [str(one) for one in problems("[providers.x]\nusage_path = '/u'")]
    assert [one.partition("usage_path: ")[2] for one in half] == [
        "usage_path needs usage_field as well",
        "usage_path needs base_url as well",
    ]
    assert "usage_field needs usage_path as well" in problem("[providers.x]\nusage_field = 'u'")


@pytest.mark.parametrize(
    "line",
    [
        *("key_env = 3", "credential_file = 'relative'", "credential_file = 3", "api = 'soap'", "api = []"),
        *("usage_field = 'a..b'", "usage_field = ''", "base_url = 3", "usage_path = 'u'"),
    ],
)
def test_c6_each_key_of_a_provider_is_checked(line: str) -> None:
    assert any("; valid is " in one.text for one in problems(f"[providers.x]\n{line}"))


@pytest.mark.parametrize("name", ["a@default", "a@", "a@b@c", "a/b", "*", "", "a b"])
def test_n1_a_provider_has_a_plain_name(name: str) -> None:
    assert "valid is a provider's name" in problem(f"[providers.'{name}']")


def test_n1_another_account_of_a_provider_has_a_table_of_its_own() -> None:
    text = "[providers.anthropic]\nkey_env = 'A'\n[providers.'anthropic@work']\nkey_env = 'B'"
    found = check(text, "c").providers
    assert {name: (each.key_env, each.api) for name, each in found.items()} == {
        "anthropic": ("A", "anthropic"),
        "anthropic@work": ("B", "anthropic"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "run.wrap = ['']",
        "run.wrap = ['a\\u0000']".replace("'", '"'),
        "run.wrap = [3]",
        "census = [{ match = 3 }]",
        "history.keep = 0",
        "agents.host = { cap = 'auto', per_agent = 0 }",
        "agents.x = { name = '' }",
        "agents.x = { name = 'a b' }",
        "agents.x = { usage_gate = 1 }",
        "agents.x = { cooldown = -1 }",
        "agents.x = { cooldown = nan }",
        "models = [3]",
        "models = 'a/b'",
    ],
)
def test_c6_nonsense_in_any_key_is_one_problem_with_what_is_valid(text: str) -> None:
    told = problem(text)
    assert "; valid is " in told or "; a duration is " in told


# --- the file itself ----------------------------------------------------------------------------------------------


def test_c2_a_file_is_known_by_its_content_and_its_time(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FROM_C1, encoding="utf-8")
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    first = load(str(path))
    assert first is not None
    assert (first.path, first.mtime_ms) == (str(path), 1_700_000_000_123)
    assert first.settings == check(FROM_C1, "x")
    path.write_text(FROM_C1 + "\n", encoding="utf-8")
    second = load(str(path))
    path.write_text(FROM_C1, encoding="utf-8")
    third = load(str(path))
    assert second is not None
    assert third is not None
    assert first.digest == third.digest != second.digest
    assert len(first.digest) == 32


def test_c1_no_file_is_none_unless_it_is_required(tmp_path: Path) -> None:
    missing = str(tmp_path / "no" / "config.toml")
    assert load(missing) is None
    assert load("/dev/null/config.toml") is None
    with pytest.raises(ConfigError, match="there is no such file"):
        load(missing, required=True)


def test_c1_an_empty_device_is_an_empty_file() -> None:
    loaded = load("/dev/null")
    assert loaded is not None
    assert loaded.settings == Settings()


def test_c6_errors_name_the_files_path(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf# with a byte order mark\r\n[agents]\r\nhost = 0\r\n")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path}:3: agents.host: found 0; valid is ")


def test_q1_a_folder_instead_of_a_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory; a config file is expected"):
        load(str(tmp_path))


def test_q1_a_file_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ConfigError, match="cannot be read: Too many levels of symbolic links"):
        load(str(loop))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ConfigError, match=r"/etc/fleetgate\.toml: cannot be read: Permission denied"):
        load("/etc/fleetgate.toml")


@contextmanager
def not_as_root() -> Iterator[None]:
    """Root may read everything: for a moment this is somebody else."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_q1_a_file_without_permission_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.touch(mode=0o000)
    with not_as_root(), pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        load(str(path))


def test_q1_a_path_that_is_none_is_said() -> None:
    with pytest.raises(ConfigError, match="is not a path"):
        load("a\0b")


def test_q1_a_file_that_is_not_utf8_names_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"models = []\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"config\.toml:2: is not UTF-8 text here; save the file as UTF-8"):
        load(str(path))


def test_q1_a_huge_file_is_refused_before_it_is_read_in_full(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"#" * LARGEST_FILE)
    assert load(str(path)) is not None
    path.write_bytes(b"#" * (LARGEST_FILE + 1))
    with pytest.raises(ConfigError, match="is larger than 1 MiB"):
        load(str(path))
    with pytest.raises(ConfigError, match="is larger than 1 MiB"):
        load("/dev/zero")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{b=" * 100_000,
        "agents.host = " + "9" * 5000,
        "agents.host = " + "9" * 4000,
        "." * 1000,
        "a." * 500 + "a = 1",
        "[" + "agents." * 500 + "a]",
        "models = [\0]",
        "seniority = 9999-99-99",
        "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
        "'" * 7,
        '"' * 7,
    ],
)
def test_q1_hostile_text_is_a_config_error(text: str) -> None:
    assert problems(text)


@given(st.text(max_size=200))
def test_q1_any_text_is_settings_or_a_config_error(text: str) -> None:
    try:
        assert isinstance(check(text, "config.toml"), Settings)
    except ConfigError as refused:
        problems = refused.problems
        assert problems


VALUE = st.sampled_from(
    [
        "1",
        "0",
        "true",
        '"auto"',
        '"1h"',
        "1.5",
        "nan",
        "[]",
        "{}",
        '["a/b"]',
        "{ cap = 2, max = 3 }",
        "[{ match = 'x' }]",
    ]
)
KEY = st.sampled_from(
    [
        *("models", "seniority", "agents", "requests", "census", "run.wrap", "history.keep", "agents.host", "typo"),
        *("agents.'a/b'", "requests.a.cap", "requests.a.on_429", "providers.a.api", "providers.a", "agents.host.max"),
    ]
)


@given(st.lists(st.tuples(KEY, VALUE), max_size=5))
def test_q1_any_mix_of_keys_and_values_is_settings_or_problems_with_lines(statements: list[tuple[str, str]]) -> None:
    try:
        check("\n".join(f"{key} = {value}" for key, value in statements), "config.toml")
    except ConfigError as refused:
        lines = [problem.line for problem in refused.problems]
        assert all(1 <= line <= len(statements) for line in lines)
