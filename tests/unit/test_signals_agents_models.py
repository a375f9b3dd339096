"""Which model a known agent will use, whatever way it is named, and how a command is made to use another."""

import pytest

from fleetgate.config.environment import Environment
from fleetgate.core.errors import BadRequest
from fleetgate.present.request_fields import wanted
from fleetgate.signals.agents import calls_no_model, model_of, own_model, use_of, with_model
from fleetgate.signals.agents.placeholders import filled_in

BEDROCK = "us.anthropic.claude-opus-4-6-v1:0"
PROFILE = "arn:aws:bedrock:us-east-1:1234:inference-profile"

NAMED = [
    ("claude --model opus[1m] -p hi", "anthropic/claude-opus-latest"),
    ("claude --model OPUS", "anthropic/claude-opus-latest"),
    ("claude --model claude-opus-4-6[1m]", "anthropic/claude-opus-4-6"),
    ("claude --model opusplan", "anthropic/claude-opus-latest"),
    ("claude --model best", "anthropic/claude-opus-latest"),
    ("claude --model claude-opus-4-5-20251101", "anthropic/claude-opus-4-5-20251101"),
    (f"claude --model {BEDROCK}", "anthropic/claude-opus-4-6"),
    ("claude --model global.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic/claude-sonnet-4-5-20250929"),
    ("claude --model anthropic.claude-opus-4-6-v1", "anthropic/claude-opus-4-6"),
    (f"claude --model {PROFILE}/{BEDROCK}", "anthropic/claude-opus-4-6"),
    (f"claude --model {PROFILE}/abc123", None),
    ("claude --model claude-opus-4-6@20250805", "anthropic/claude-opus-4-6-20250805"),
    ("claude --model claude-opus-4-6@default", "anthropic/claude-opus-4-6"),
    ("claude --model default", None),
    ("claude -p hi", None),
    ("claude -p hi --fallback-model opus --model sonnet", "anthropic/claude-sonnet-latest"),
    ("codex exec -c model=o3 hi", "openai/o3"),
    ('codex exec --config model="gpt-5" hi', "openai/gpt-5"),
    ("codex exec --config=model=gpt-5 hi", "openai/gpt-5"),
    ("codex exec --oss hi", None),
    ("codex exec --oss -m gpt-oss:120b hi", "ollama/gpt-oss:120b"),
    ("codex exec -c model_provider=azure -m gpt-5 hi", "azure/gpt-5"),
    ("opencode run -m google-vertex/claude-opus-4-6@20250805 hi", "vertex/claude-opus-4-6-20250805"),
    ("gemini -m pro", "google/gemini-pro-latest"),
    ("gemini --model=auto", "google/gemini-pro-latest"),
    ("gemini -m models/gemini-2.5-pro", "google/gemini-2.5-pro"),
    ("aider --opus", "anthropic/claude-opus-latest"),
    ("aider --model sonnet", "anthropic/claude-sonnet-latest"),
    ("aider --model openrouter/anthropic/claude-opus-4.6", "openrouter/anthropic/claude-opus-4.6"),
    ("aider --alias fast:gpt-5 --model fast", "openai/gpt-5"),
    ("nice -n 5 timeout 5m npx -y @anthropic-ai/claude-code --model opus", "anthropic/claude-opus-latest"),
    ("env -u X ANTHROPIC_MODEL=opus claude -p hi", "anthropic/claude-opus-latest"),
    ("env ANTHROPIC_MODEL=opus claude --model haiku", "anthropic/claude-haiku-latest"),
    ("time taskset 0x1 claude --model opus", "anthropic/claude-opus-latest"),
]


@pytest.mark.parametrize(("command", "model"), NAMED, ids=[command for command, _ in NAMED])
def test_every_way_to_name_a_model_is_the_model_that_caps_know(command, model):
    assert model_of(command.split()) == model


SCRIPTS = [
    ("claude --model opus -p 'a; b'", "anthropic/claude-opus-latest"),
    ("cd /tmp && ANTHROPIC_MODEL=opus exec claude -p hi", "anthropic/claude-opus-latest"),
    ("export ANTHROPIC_MODEL=sonnet\nclaude -p hi", "anthropic/claude-sonnet-latest"),
    ("if true; then timeout 5m codex exec -m gpt-5 hi; fi", "openai/gpt-5"),
    ("claude --model $FAST -p hi", "anthropic/claude-haiku-latest"),
    ("claude --model $1 -p hi", None),
    ("claude --model $FLEETGATE_MODEL -p hi", None),
    ("echo 'not closed", None),
    ("make test", None),
]


@pytest.mark.parametrize(("script", "model"), SCRIPTS, ids=[script for script, _ in SCRIPTS])
def test_the_script_of_a_shell_is_looked_into(script, model):
    assert model_of(["bash", "-lc", script], {"FAST": "haiku", "FLEETGATE_MODEL": "anthropic/claude-opus-4-6"}) == model


VARIABLES = [
    ("claude -p hi", {"ANTHROPIC_MODEL": "claude-opus-4-6[1m]"}, "anthropic/claude-opus-4-6"),
    ("claude --model opus", {"ANTHROPIC_DEFAULT_OPUS_MODEL": BEDROCK}, "anthropic/claude-opus-4-6"),
    ("claude --model opusplan", {"ANTHROPIC_DEFAULT_OPUS_MODEL": "claude-opus-4-5"}, "anthropic/claude-opus-4-5"),
    ("claude -p hi", {"ANTHROPIC_SMALL_FAST_MODEL": "claude-haiku-4-5"}, None),
    ("gemini -p hi", {"GEMINI_MODEL": "gemini-2.5-flash"}, "google/gemini-2.5-flash"),
    ("aider", {"AIDER_MODEL": "gpt-5"}, "openai/gpt-5"),
    ("opencode run hi", {"OPENCODE_CONFIG_CONTENT": '{"model": "umans/coder"}'}, "umans/coder"),
]


@pytest.mark.parametrize(("command", "environ", "model"), VARIABLES)
def test_the_environment_names_a_model(command, environ, model):
    assert model_of(command.split(), environ) == model


FILES = [
    ("claude -p hi", "home/.claude/settings.json", '{"model": "opus"}', "anthropic/claude-opus-latest"),
    (
        "claude -p hi",
        "work/.claude/settings.local.json",
        '{"env": {"ANTHROPIC_MODEL": "haiku"}}',
        "claude-haiku-latest",
    ),
    ("claude -p hi --settings my.json", "work/my.json", '{"model": "claude-opus-4-6"}', "anthropic/claude-opus-4-6"),
    ("codex exec hi", "home/.codex/config.toml", 'model = "gpt-5"', "openai/gpt-5"),
    ("codex exec -p deep hi", "home/.codex/deep.config.toml", 'model = "gpt-5-pro"', "openai/gpt-5-pro"),
    ("codex exec -p deep hi", "home/.codex/config.toml", '[profiles.deep]\nmodel = "o3"', "openai/o3"),
    ("codex exec hi", "home/.codex/config.toml", 'model = "x"\nmodel_provider = "azure"', "azure/x"),
    ("opencode run hi", "work/opencode.jsonc", '{\n  // mine\n  "model": "umans/coder",\n}', "umans/coder"),
    ("opencode run hi", "home/.config/opencode/opencode.json", '{"model": "umans/coder"}', "umans/coder"),
    ("opencode run --agent x hi", "work/opencode.json", '{"agent": {"x": {"model": "a/b"}}, "model": "c/d"}', "a/b"),
    ("gemini -p hi", "home/.gemini/settings.json", '{"model": {"name": "gemini-2.5-pro"}}', "google/gemini-2.5-pro"),
    ("aider", "work/.aider.conf.yml", "dark-mode: true\nmodel: sonnet # best\n", "anthropic/claude-sonnet-latest"),
    ("aider", "home/.aider.conf.yml", "weak-model: gpt-5\n", ""),
    ("claude", "home/.claude/settings.json", "not JSON", ""),
]


@pytest.mark.parametrize(("command", "path", "text", "model"), FILES)
def test_an_agents_own_settings_name_a_model(tmp_path, command, path, text, model):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    (tmp_path / "work").mkdir(exist_ok=True)
    use = use_of(command.split(), {"HOME": str(tmp_path / "home")}, str(tmp_path / "work"))
    assert use is not None
    assert use.kept == bool(model)
    assert use.model == model or use.model.endswith(f"/{model}")


CHANGED = [
    (
        "opencode run -m anthropic/claude-opus-4-6 hi",
        "anthropic/claude-sonnet-4-6",
        "opencode run -m anthropic/claude-sonnet-4-6 hi",
    ),
    ("opencode run hi", "umans/coder", "opencode run --model umans/coder hi"),
    ("opencode serve", "umans/coder", "opencode serve"),
    ("claude -p hi", "anthropic/claude-opus-latest", "claude --model opus -p hi"),
    ("claude --model=sonnet hi", "anthropic/claude-opus-4-6", "claude --model=claude-opus-4-6 hi"),
    ("timeout 5m claude --model sonnet", "anthropic@work/claude-opus-4-6", "timeout 5m claude --model claude-opus-4-6"),
    ("codex exec hi", "openai/gpt-5", 'codex -c model="gpt-5" exec hi'),
    ("codex exec -m o3 hi", "openai/gpt-5", "codex exec -m gpt-5 hi"),
    ("aider --opus hi", "openai/gpt-5", "aider --model openai/gpt-5 hi"),
    ("gemini -p hi", "gemini/gemini-2.5-pro", "gemini --model gemini-2.5-pro -p hi"),
    # The same model in other words.
    ("claude --model opus", "anthropic/claude-opus-4-6", "claude --model opus"),
    ("claude --model claude-opus-4-5-20251101", "anthropic/claude-opus-4-5", "claude --model claude-opus-4-5-20251101"),
    ("claude --model claude-opus-4-6[1m]", "umans/claude-opus-4-6", "claude --model claude-opus-4-6[1m]"),
    ("gemini -m gemini-2.5-pro", "gemini/gemini-2.5-pro", "gemini -m gemini-2.5-pro"),
    # Nothing tells how.
    ("./agent.sh --model opus", "anthropic/claude-sonnet-4-6", "./agent.sh --model opus"),
    ("claude -p hi", "openai/gpt-5", "claude -p hi"),
]


@pytest.mark.parametrize(("command", "model", "changed"), CHANGED, ids=[each[0] for each in CHANGED])
def test_a_command_is_made_to_use_the_model_of_its_slot(command, model, changed):
    found, said = with_model(command.split(), model, {})
    assert found == changed.split()
    assert bool(said) == (command != changed and any(flag in command for flag in ("-m ", "--model", "--opus")))


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["claude", "--model", "opus"], {}),
        (["sh", "-c", "claude --model opus -p hi"], {}),
        (["codex", "exec", "-m", "o3"], {}),
        (["claude", "--model", BEDROCK], {"CLAUDE_CODE_USE_BEDROCK": "1"}),
    ],
)
def test_a_command_that_names_another_model_for_good_is_refused(argv, environ):
    model = "anthropic/claude-sonnet-4-6" if argv[0] == "sh" or environ else "mistral/large"
    with pytest.raises(BadRequest, match=f"the slot is for {model}: name the same model, or write"):
        with_model(argv, model, environ)


def test_a_provider_is_named_to_an_agent_as_the_agent_spells_it():
    assert with_model(["aider", "--model", "gpt-5"], "google/gemini-2.5-pro", {})[0] == [
        "aider",
        "--model",
        "gemini/gemini-2.5-pro",
    ]
    assert filled_in(["aider", "--model", "{model}"], "google@work/gemini-2.5-pro")[2] == "gemini@work/gemini-2.5-pro"
    assert filled_in(["opencode", "run", "-m", "{provider}/{name}"], "bedrock/x")[3] == "amazon-bedrock/x"
    assert filled_in(["./agent", "{model}"], "google/gemini-2.5-pro")[1] == "google/gemini-2.5-pro"


def models_of(command, given="", models=(), **options):
    environ = options.pop("environ", {})
    return wanted(given, command.split(), Environment(models=models), None, environ, "", **options)


DEFAULTS = ("umans/coder", "openai/gpt-5")


def test_default_models_are_for_agents_and_for_commands_with_a_place_for_a_model():
    assert models_of("make nightly", models=DEFAULTS).models == ()
    assert models_of("opencode run hi", models=DEFAULTS).models == DEFAULTS
    assert models_of("./agent.sh --model {model}", models=DEFAULTS).models == DEFAULTS
    assert models_of("./agent.sh", models=DEFAULTS, classify="claude").models == DEFAULTS
    assert models_of("opencode run -m a/b hi", models=DEFAULTS).models == ("a/b",)
    assert models_of("claude -p hi", models=DEFAULTS, environ={"ANTHROPIC_MODEL": "opus"}).models == (
        "anthropic/claude-opus-latest",
    )


def test_none_opts_out_of_a_model():
    assert models_of("opencode run hi", "none", DEFAULTS).models == ()
    assert models_of("claude -p hi", "none").note == ""


def test_a_model_that_cannot_be_told_is_said_with_what_to_type():
    note = models_of("claude -p hi").note
    assert note.startswith("cannot tell which model claude will use, so no cap on a model counts it: name it with -m")
    assert "('default')" in models_of("claude --model default").note
    assert not models_of("claude --model {model}").note
    assert not models_of("make nightly").note


def test_an_agent_of_one_provider_takes_only_models_that_it_can_call():
    both = ("openai/gpt-5", "anthropic/claude-sonnet-4-6")
    assert models_of("claude -p hi", models=both).models == both[1:]
    assert models_of("codex exec hi", models=both).models == both[:1]
    assert models_of("claude -p hi", models=both[:1]).models == ()
    assert models_of("claude -p hi", models=both[:1]).note
    assert models_of("claude -p hi", models=both, environ={"ANTHROPIC_BASE_URL": "http://gate"}).models == both
    assert models_of("claude -p hi", ",".join(both)).models == both, "its user knows"


def test_candidates_that_a_command_cannot_use_are_refused_before_anything_waits():
    with pytest.raises(BadRequest, match="claude is told to use opus, and the slot is for openai/gpt-5"):
        models_of("claude --model opus", "anthropic/claude-opus-4-6,openai/gpt-5")


# Run unchanged, as a shim does.

UNCHANGED = [
    ("/usr/bin/claude --model opus", {}, "anthropic/claude-opus-latest"),
    ("/usr/bin/claude", {}, "anthropic/default"),
    ("claude --model default", {}, "anthropic/default"),
    ("claude", {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}, ""),
    ("claude", {"CLAUDE_CODE_USE_BEDROCK": "1"}, ""),
    ("codex", {}, "openai/default"),
    ("codex -c model_provider=azure", {}, "azure/default"),
    ("gemini", {}, "google/default"),
    ("opencode", {}, ""),
    ("aider --model {model}", {}, ""),
    ("make test", {}, ""),
]


@pytest.mark.parametrize(("command", "environ", "model"), UNCHANGED)
def test_an_agent_that_is_told_no_model_counts_for_its_provider(command, environ, model):
    assert own_model(command.split(), environ) == model


NO_MODEL = [
    "claude --version",
    "claude -v",
    "claude mcp add x",
    "codex exec --help",
    "codex login",
    "opencode auth login",
]
NO_MODEL += ["gemini --list-sessions", "aider --list-models gpt", "make --version", "/usr/bin/node /x/bin/codex -V"]
A_MODEL = [
    "claude",
    "claude -p --version-of-it",
    "codex",
    "codex exec x",
    "aider -v",
    "opencode run hi",
    "opencode .",
    "make",
]


@pytest.mark.parametrize("command", NO_MODEL)
def test_a_command_that_prints_or_manages_something_calls_no_model(command):
    assert calls_no_model(command.split())


@pytest.mark.parametrize("command", A_MODEL)
def test_any_other_command_may_call_a_model(command):
    assert not calls_no_model(command.split())
