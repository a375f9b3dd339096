"""`fleetgate init`: what it finds, writes, asks and takes back, in homes of its own."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleetgate.cli.init.config_text import config_text
from fleetgate.cli.init.journal import Journal
from fleetgate.cli.init.service import unit_text
from fleetgate.cli.init.status_line import status_line_step
from fleetgate.cli.init.survey import FoundAgent, Survey, survey
from fleetgate.cli.main import invoke
from fleetgate.cli.shims.startup_files import CannotChange
from fleetgate.config.file import check, load
from fleetgate.gate.liveness.foreign_agents import find

DEPLOY = Path(__file__).parents[2] / "deploy"
SECRET = "sk-0123456789abcdef-secret"


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Home:
    """A home with agents on PATH; `home("--yes")` calls `fleetgate init --yes`."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str = "bash"
    ) -> None:
        self.folder = folder
        self._capsys = capsys
        for name in os.environ:
            if name.startswith(("FLEETGATE_", "XDG_", "CLAUDE_", "CODEX_")) or name.endswith(("_KEY", "_TOKEN")):
                monkeypatch.delenv(name)
        for name, value in {"HOME": folder, "SHELL": f"/bin/{shell}", "PATH": f"{folder}/bin:/usr/bin:/bin"}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.delenv("ZDOTDIR", raising=False)
        self.program("claude")
        self.program("codex")

    @property
    def config(self) -> Path:
        return self.folder / ".config/fleetgate/config.toml"

    @property
    def shims(self) -> Path:
        return self.folder / ".local/share/fleetgate/shims"

    def program(self, name: str, text: str = "#!/bin/sh\nexit 3\n") -> Path:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def __call__(self, *words: str) -> Said:
        self._capsys.readouterr()
        code = invoke(["init", *words])
        said = Said(code, *self._capsys.readouterr())
        assert "Traceback" not in said.err
        assert SECRET not in said.out + said.err
        return said

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Everything in the home: the rights of each folder and file, and the content of files and links."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            facts = path.lstat()
            is_file = stat.S_ISREG(facts.st_mode)
            content = path.read_bytes() if is_file else b"" if path.is_dir() else os.fsencode(path.readlink())
            found[str(path.relative_to(self.folder))] = (stat.S_IMODE(facts.st_mode), content)
        return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, monkeypatch, capsys)


# What it finds.


def test_it_finds_agents_logins_and_keys_without_showing_a_secret(home: Home, monkeypatch: pytest.MonkeyPatch):
    places = (".claude/.credentials.json", ".claude-work/.credentials.json", ".local/share/opencode/auth.json")
    for path in map(home.folder.joinpath, places):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"key": SECRET}))
        path.chmod(0)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    found = json.loads(home("--dry-run", "--json").out)["found"]
    agents = {agent["name"]: agent["path"] for agent in found["agents"]}
    assert {"claude": f"{home.folder}/bin/claude", "codex": f"{home.folder}/bin/codex"}.items() <= agents.items()
    assert found["logins"] == [
        {"provider": "anthropic", "where": "~/.claude/.credentials.json"},
        {"provider": "openai", "where": "$OPENAI_API_KEY"},
        {"provider": "", "where": "~/.local/share/opencode/auth.json"},
    ]
    assert found["accounts"][0]["name"] == "anthropic@work"
    assert found["cores"] >= 1
    assert home("--yes").code == 0
    for path in map(home.folder.joinpath, places):
        path.chmod(0o600)
    assert {name for name, (_, content) in home.files().items() if SECRET.encode() in content} == {*places}
    assert SECRET not in home.config.read_text()
    assert "anthropic@work" in (load(str(home.config)) or pytest.fail("no config")).settings.providers


def test_it_finds_programs_that_this_shell_does_not_have_on_path(home: Home):
    for version in ("v9.1.0", "v22.3.1"):
        place = home.folder / f".nvm/versions/node/{version}/bin"
        place.mkdir(parents=True)
        (place / "gemini").write_text("#!/bin/sh\n")
        (place / "gemini").chmod(0o755)
    agents = {agent.name: agent.path for agent in survey(os.environ).agents}
    assert agents["gemini"] == f"{home.folder}/.nvm/versions/node/v22.3.1/bin/gemini"


def _machine(gib: float | None, cores: int) -> Survey:
    return Survey((), (), (), None if gib is None else int(gib * 2**30), cores, "bash")


@pytest.mark.parametrize(
    ("gib", "cores", "room"), [(1, 4, 1), (4, 4, 2), (8, 2, 4), (16, 8, 14), (64, 64, 16), (None, 1, 2)]
)
def test_the_number_of_agents_fits_memory_and_cores(gib: float | None, cores: int, room: int):
    assert _machine(gib, cores).room() == room


# What it writes.


def test_the_config_is_valid_and_says_what_was_chosen(home: Home):
    assert home("--yes", "--host", "7").code == 0
    loaded = load(str(home.config))
    assert loaded is not None
    assert [(rule.selector, rule.cap) for rule in loaded.settings.rules] == [("host", 7)]
    assert stat.S_IMODE(home.config.stat().st_mode) == 0o600
    assert "host = 7 " in home.config.read_text()


@pytest.mark.parametrize("host", ["auto", "3"])
@pytest.mark.parametrize("agents", [(), ("claude",), ("claude", "opencode", "codex", "aider", "gemini")])
def test_every_config_that_it_can_write_is_valid_also_with_its_comments_turned_on(host: str, agents: tuple[str, ...]):
    found = Survey(tuple(FoundAgent(name, f"/bin/{name}") for name in agents), (), (), None, 2, "")
    text = config_text(found, host)
    lines = [
        line.removeprefix("# ") if " = " in line or line in ("# [requests]", "# [budgets]") else line
        for line in text.splitlines()
    ]
    check("\n".join(line for line in lines if not line.startswith('host = "auto"')), "with comments")


LINES = [
    (["claude"], ""),
    (["/opt/bin/claude", "--model", "opus", "-p", "x"], "anthropic/claude-opus-latest"),
    (["node", "--no-warnings", "/lib/node_modules/.bin/codex", "exec", "-m", "gpt-5", "x"], "openai/gpt-5"),
    (["/venv/bin/python3.12", "/venv/bin/aider", "--model=sonnet"], "anthropic/claude-sonnet-latest"),
]
OTHERS = [["vim", "/src/claude"], ["/bin/sh", "/shims/claude"], ["claude-mem"], ["grep", "-m", "1", "claude"], ["bash"]]


def test_the_census_finds_agents_and_nothing_else():
    names = ("claude", "opencode", "codex", "aider", "gemini")
    found = Survey(tuple(FoundAgent(name, f"/bin/{name}") for name in names), (), (), None, 2, "")
    patterns = check(config_text(found, "3"), "census").census
    argvs = dict(enumerate([*(argv for argv, _ in LINES), *OTHERS], 100))
    assert [model for _, model, _ in find(patterns, argvs, lambda _pid: 1)] == [model for _, model in LINES]


def test_a_second_call_changes_nothing(home: Home):
    (home.folder / ".bashrc").write_text("export X=1\n")
    assert home("--yes").code == 0
    before = home.files()
    again = home("--yes", "--host", "9")
    assert again.code == 0
    assert "nothing: everything is there already" in again.out
    assert home.files() == before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_undo_restores_exactly_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str
):
    home = Home(tmp_path, monkeypatch, capsys, shell)
    (tmp_path / ".bashrc").write_bytes(b"# no line end \xff")
    (tmp_path / ".bash_profile").write_text("export Y=1\n")
    (tmp_path / "dotfiles").write_text("setopt x\n")
    (tmp_path / ".zshrc").symlink_to("dotfiles")
    before = home.files()
    assert home("--yes").code == 0
    changed = {name for name, value in home.files().items() if before.get(name) != value}
    assert {"bash": ".bashrc", "zsh": "dotfiles", "fish": ".config/fish/config.fish"}.get(shell, "") in {*changed, ""}
    assert home("--undo").code == 0
    assert home.files() == before
    assert "nothing to undo" in home("--undo").out
    assert home.files() == before


def test_undo_keeps_what_the_user_changed_or_added_since(home: Home):
    home.program("gemini")
    home("--yes", "--no-shims")
    assert invoke(["shim", "install", "gemini"]) == 0
    home.config.write_text("# mine\n")
    rc = home.folder / ".bashrc"
    rc.write_text(f"export BEFORE=1\n{rc.read_text()}export BEHIND=1\n")
    undone = home("--undo")
    assert "config.toml stays: it was edited since" in undone.err
    assert home.config.read_text() == "# mine\n"
    assert (home.shims / "gemini").exists()
    left = rc.read_text()
    assert "fleetgate shims" in left
    assert "fleetgate completion" not in left
    assert "export BEFORE=1\n" in left
    assert left.endswith("export BEHIND=1\n")


def test_a_shim_of_the_user_keeps_its_line_for_path(home: Home):
    home("--yes")
    home.program("gemini")
    assert invoke(["shim", "install", "gemini"]) == 0
    assert "there are shims that init did not make (gemini)" in home("--undo").err
    assert [path.name for path in home.shims.iterdir()] == ["gemini"]
    assert "fleetgate shims" in (home.folder / ".bashrc").read_text()


def test_an_existing_config_is_never_changed_and_what_it_lacks_is_shown(home: Home):
    home.config.parent.mkdir(parents=True)
    home.config.write_text("[agents]\nhost = 2\n")
    said = home("--yes")
    assert home.config.read_text() == "[agents]\nhost = 2\n"
    assert "config.toml is not changed. It could also have:" in said.out
    assert "[[census]]" in said.out
    assert "host =" not in said.out
    home.config.write_text("[agents\n")
    broken = home("--yes")
    assert "your config file has an error, and is not changed" in broken.err
    assert home.config.read_text() == "[agents\n"
    home("--undo")
    assert home.config.read_text() == "[agents\n"


def test_a_dry_run_changes_nothing_and_shows_everything(home: Home):
    before = home.files()
    said = home("--dry-run", "--with", "completion")
    assert home.files() == before
    for part in ("host = ", "~/.bashrc: 4 lines at its end (shims)", "shims/claude: new file", "completion.bash"):
        assert part in said.out
    home("--yes")
    after = home.files()
    assert "would undo  ~/.config/fleetgate/config.toml" in home("--undo", "--dry-run").out
    assert home.files() == after


def test_without_a_terminal_it_asks_nothing_and_changes_nothing(home: Home):
    before = home.files()
    said = home()
    assert said.code == 64
    assert "use --yes, or --dry-run" in said.err
    assert home.files() == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--host", "0"), "valid is a whole number from 1 to 10000, or auto"),
        (("--host", "x"), "valid is a whole number"),
        (("--with", "moon"), "valid is any of completion, service, statusline, or none"),
    ],
)
def test_a_wrong_option_changes_nothing(home: Home, words: tuple[str, ...], sentence: str):
    before = home.files()
    said = home("--yes", *words)
    assert said.code == 64
    assert sentence in said.err
    assert home.files() == before


def test_an_undo_that_fails_in_part_can_be_completed(home: Home):
    rc = home.folder / ".bashrc"
    rc.write_text("export X=1\n")
    before = home.files()
    home("--yes")
    rc.chmod(0o666)
    failed = home("--undo")
    assert failed.code == 64
    assert "another user could change it" in failed.err
    assert not home.config.exists()
    rc.chmod(0o644)
    assert home("--undo").code == 0
    assert home.files() == before


# What is not safe.


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's home: run as root")
def test_the_home_of_another_user_is_refused(home: Home):
    os.chown(home.folder, 65534, 65534)
    said = home("--yes")
    assert said.code == 64
    assert "run `fleetgate init` as that user" in said.err


def test_files_that_another_user_could_replace_are_not_made_and_the_rest_is(home: Home):
    shared = home.folder / ".config"
    shared.mkdir()
    shared.chmod(0o777)
    said = home("--yes")
    assert said.code == 64
    assert "another user could replace it" in said.err
    assert not home.config.exists()
    assert (home.shims / "claude").exists()
    assert home("--undo").code == 0
    assert not home.shims.exists()


def test_a_journal_that_another_user_could_have_written_is_not_followed(home: Home):
    home("--yes")
    journal = home.folder / ".local/share/fleetgate/init.json"
    journal.chmod(0o666)
    before = home.files()
    said = home("--undo")
    assert said.code == 64
    assert "other users can change it" in said.err
    assert home.files() == before


def test_two_calls_at_once_do_not_mix(home: Home):
    fd = os.open(home.folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    before = home.files()
    said = home("--yes")
    assert (said.code, "another `fleetgate init` is running" in said.err) == (64, True)
    assert home.files() == before
    os.close(fd)
    assert home("--yes").code == 0
    assert home("--undo").code == 0


def test_a_call_that_was_killed_in_the_middle_can_be_undone(home: Home, monkeypatch: pytest.MonkeyPatch):
    from fleetgate.cli.shims import shim_folder

    before = home.files()
    install: Callable[..., bool] = shim_folder.ShimFolder.install

    def killed(self: Any, name: str) -> bool:
        install(self, name)
        os._exit(9)

    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr(shim_folder.ShimFolder, "install", killed)
        home("--yes")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert (home.shims / "claude").exists()
    assert home("--undo").code == 0
    assert home.files() == before


# The service and the status line.

SYSTEMCTL = """#!/bin/sh
echo "$@" >>"$HOME/systemctl.log"
case "$*" in *is-enabled*) [ -e "$HOME/on" ] ;; *enable*) touch "$HOME/on" ;; *disable*) rm "$HOME/on" ;; esac
"""


def test_a_service_is_started_once_and_stopped_by_undo(home: Home, monkeypatch: pytest.MonkeyPatch):
    home.program("systemctl", SYSTEMCTL)
    monkeypatch.setenv("FLEETGATE_HOME", f"{home.folder}/a 100% state")
    before = home.files()
    for _ in range(2):
        assert home("--yes", "--no-shims", "--with", "service").code == 0
    unit = (home.folder / ".config/systemd/user/fleetgate.service").read_text()
    assert f"ExecStart={sys.executable.rpartition('/')[0]}/fleetgate serve\n" in unit
    assert f'Environment="FLEETGATE_HOME={home.folder}/a 100%% state"\n' in unit
    log = (home.folder / "systemctl.log").read_text()
    assert log.count("--user enable --now fleetgate.service") == 1
    assert home("--undo").code == 0
    assert "--user disable --now fleetgate.service" in (home.folder / "systemctl.log").read_text()
    (home.folder / "systemctl.log").unlink()
    assert home.files() == before


def test_without_systemd_no_service_is_set_up_and_the_reason_is_printed(home: Home):
    home.program("systemctl", "#!/bin/sh\nexit 1\n")
    said = home("--yes", "--with", "service")
    assert said.code == 0
    assert "no service: there is no systemd for this user here" in said.err


def test_the_unit_is_that_of_the_deploy_folder():
    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    assert lines(unit_text("%h", {}).replace("%%h", "%h/.local/bin/fleetgate")) == lines(
        (DEPLOY / "fleetgate.service").read_text()
    )


@pytest.mark.parametrize(
    "before", [b'{"env":{"ANTHROPIC_API_KEY":"sk-secret"},\r\n "model":"opus"}', b"{}\n", b" {\n}", None]
)
def test_the_status_line_is_set_and_its_removal_restores_every_byte(home: Home, before: bytes | None):
    settings = home.folder / ".claude/settings.json"
    settings.parent.mkdir()
    if before is not None:
        settings.write_bytes(before)
    files = home.files()
    for _ in range(2):
        assert home("--yes", "--no-shims", "--with", "statusline").code == 0
    said = json.loads(settings.read_bytes())
    assert said.pop("statusLine")["command"].endswith("fleetgate statusline")
    assert said == json.loads(before or b"{}")
    journal = (home.folder / ".local/share/fleetgate/init.json").read_text()
    assert "sk-secret" not in journal
    assert home("--undo").code == 0
    assert home.files() == files


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (b'{"statusLine":{"type":"command","command":"mine"}}', "which stays"),
        (b'{ // mine\n"a":1}', "not plain JSON"),
        (b'{"name":"Ren\xe9"}', "not plain JSON"),
    ],
)
def test_a_status_line_of_the_user_and_settings_with_comments_or_other_bytes_stay(home: Home, data: bytes, note: str):
    settings = home.folder / ".claude/settings.json"
    settings.parent.mkdir()
    settings.write_bytes(data)
    assert note in home("--yes", "--with", "statusline").err
    assert settings.read_bytes() == data


@pytest.mark.parametrize("before", [None, "{}", '{"a": 1}'])
def test_settings_that_another_program_writes_while_the_questions_are_asked_stay(home: Home, before: str | None):
    settings = home.folder / ".claude/settings.json"
    settings.parent.mkdir()
    if before is not None:
        settings.write_text(before)
    step = status_line_step(os.environ)
    assert not isinstance(step, str)
    settings.write_text('{"model": "opus"}')
    with pytest.raises(CannotChange, match="meanwhile"):
        Journal().do(step)
    assert settings.read_text() == '{"model": "opus"}'
    assert not Journal().steps
