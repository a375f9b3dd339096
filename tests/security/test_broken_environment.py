"""Whatever a command is started with, it ends with a sentence and an exit code, and never in a traceback."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetgate.cli import click_group
from fleetgate.cli.main import main

FLEETGATE = str(Path(sys.executable).with_name("fleetgate"))
CANNOT_PRINT, SYSTEM = 74, 71

PRINTING = ("status", "status --json", "queue", "ps", "jobs", "metrics", "config show", "doctor", "store", "--version")
ALL = (*PRINTING, *(f"{name} --help" for name in click_group.COMMANDS))


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A gate on which something has happened, with text of many kinds."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "config.toml").write_text('[requests]\n"some/*" = 2\n')
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLEETGATE_", "PYTHON", "LC_"))}
    environ = {**kept, "FLEETGATE_HOME": str(folder / "state"), "FLEETGATE_CONFIG": str(folder / "config.toml")}
    subprocess.run([FLEETGATE, "submit", "-m", "some/model", "--", "echo", "grüße 世界"], env=environ, check=True)
    return environ


def run_forked(words: str, environ: dict[str, str], folder: Path, *, out: str | None) -> tuple[int, str]:
    """Run a command in a forked child with this file as stdout (None: closed); its exit code, and what it said."""
    errors = folder / "stderr"
    pid = os.fork()
    if pid == 0:
        try:
            os.environ.clear()
            os.environ.update(environ)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
            if out is None:
                os.close(1)
                sys.stdout = None  # as Python finds it
            else:
                os.dup2(os.open(out, os.O_WRONLY), 1)
            main(words.split())
        finally:
            os._exit(99)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), errors.read_text()


@pytest.mark.parametrize("out", ["/dev/full", None], ids=["a full disk", "a closed stdout"])
def test_what_cannot_be_printed_is_said_by_every_command(
    environ: dict[str, str], tmp_path: Path, out: str | None
) -> None:
    if out is not None and not Path(out).exists():
        pytest.skip("there is no such device")
    for module in click_group.COMMANDS.values():
        importlib.import_module(f"fleetgate.cli.{module}")  # here, and not in each child
    for words in ALL:
        code, said = run_forked(words, environ, tmp_path, out=out)
        assert (code, len(said.splitlines())) == (CANNOT_PRINT, 1), f"{words}: {code} {said}"
        assert said.startswith("fleetgate: cannot print "), words


def run(words: str, environ: dict[str, str], before: str = "true", after: str = "", **more: str) -> tuple[int, str]:
    """Run a command by a shell that does something before; its exit code and everything it said."""
    line = f'{before}; "$FLEETGATE" {words} {after}'
    done = subprocess.run(
        ["sh", "-c", line],
        env={**environ, "FLEETGATE": FLEETGATE, **more},
        capture_output=True,
        timeout=60,
        check=False,
    )
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert "Traceback" not in said, said
    assert "internal error" not in said, said
    assert "Exception" not in said, said
    return done.returncode, said


@pytest.mark.parametrize("most", [8, 12, 16])
@pytest.mark.parametrize("words", ["status", "run -- true", "submit -- true", "acquire -m some/model --for 1s"])
def test_a_process_that_may_open_few_files_says_so_if_these_do_not_do(
    environ: dict[str, str], words: str, most: int
) -> None:
    code, said = run(words, environ, before=f"ulimit -n {most}")
    assert code in (0, 64) or (code, "ulimit -n" in said) == (SYSTEM, True), said


@pytest.mark.parametrize("words", ["status", "history", "run -- true", "metrics"])
def test_a_current_folder_that_was_removed_keeps_nobody_from_looking(
    environ: dict[str, str], tmp_path: Path, words: str
) -> None:
    assert run(words, environ, before=f"mkdir {tmp_path}/a; cd {tmp_path}/a; rmdir {tmp_path}/a")[0] == 0


def test_a_job_in_a_folder_that_was_removed_is_refused_with_a_sentence(environ: dict[str, str], tmp_path: Path) -> None:
    code, said = run("submit -- true", environ, before=f"mkdir {tmp_path}/a; cd {tmp_path}/a; rmdir {tmp_path}/a")
    assert code == SYSTEM
    assert "the current folder no longer exists" in said


@pytest.mark.parametrize("home", ["", "/dev/null", "/proc/none"])
@pytest.mark.parametrize("words", ["status", "run -- true", "config show"])
def test_a_home_that_is_none_is_said(environ: dict[str, str], words: str, home: str) -> None:
    without = {name: value for name, value in environ.items() if name not in ("FLEETGATE_HOME", "XDG_STATE_HOME")}
    before = f"export HOME={home}" if home else "unset HOME; FLEETGATE_STORE=memory:// export FLEETGATE_STORE"
    code, said = run(words, without, before=before)
    assert code in (0, 64, 69, 78), said


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}],
    ids=["C", "C without UTF-8", "ascii"],
)
@pytest.mark.parametrize("words", ["jobs", "history", "history --json"])
def test_text_that_the_locale_has_no_characters_for_is_shown_all_the_same(
    environ: dict[str, str], words: str, locale: dict[str, str]
) -> None:
    code, said = run(words, environ, **locale)
    assert code == 0
    assert said


def test_stderr_that_takes_nothing_changes_no_exit_code(environ: dict[str, str]) -> None:
    assert run("status", environ, after="2>/dev/full")[0] == 0
    assert run("nonsense", environ, after="2>/dev/full")[0] == 64
    assert run("nonsense", environ, after="<&- >&- 2>&-")[0] == 64
    assert run("run -- sh -c 'exit 3'", environ, after="<&- >&- 2>&-")[0] == 3


@pytest.mark.parametrize("words", ["history", "--help", "metrics", "config show"])
def test_a_reader_that_leaves_hears_no_complaint(environ: dict[str, str], words: str) -> None:
    code, said = run(words, environ, after="| head -c 1")
    assert code == 0
    assert len(said) <= 1


def test_output_that_others_have_made_non_blocking_is_printed_whole(environ: dict[str, str]) -> None:
    """As the pipes of some programs are that start us."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    command = [FLEETGATE, "simulate", "--help"]
    wanted = subprocess.run(command, env=environ, capture_output=True, check=True).stdout
    os.write(write_fd, b"." * 65_000)  # little is left of the pipe
    process = subprocess.Popen(command, env=environ, stdout=write_fd, stderr=subprocess.PIPE)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as file:
        file.read(60_000)
        printed = file.read().lstrip(b".")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    assert printed == wanted
