"""A picture of a terminal for the README: a small fleet in a folder of its own, and what the program prints about it.

    .venv/bin/python tools/terminal_picture.py        # writes docs/images/terminal.svg

The agents are programs that sleep under the names of real ones. The commands in the picture really run, on a
terminal of 118 columns. The picture names no font of another machine.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import termios
import time
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
COLUMNS = 118

CONFIG = """
[agents]
host = 8
"anthropic/claude-opus-*" = 2
"anthropic/claude-sonnet-*" = 6
"""

AGENTS = [
    ("anthropic/claude-opus-4-6", "web", "claude -p 'fix the flaky login test'"),
    ("anthropic/claude-sonnet-4-6", "docs", "claude -p 'rewrite the tutorial'"),
    ("anthropic@work/claude-opus-4-6", "api", "opencode run 'add pagination to /users'"),
    ("anthropic/claude-opus-4-6", "web", "claude -p 'work on issue 101'"),
    ("anthropic/claude-opus-4-6", "api", "opencode run 'work on issue 102'"),
    ("anthropic/claude-opus-4-6", "web", "claude -p 'work on issue 103'"),
]


def fleetgate(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "fleetgate", *arguments]


def start_fleet(folder: Path, environment: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    for name in ("claude", "opencode"):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\nexec sleep 600\n")
        program.chmod(0o755)
    started = []
    for model, project, command in AGENTS:
        start, prompt = command.split(" '")
        words = [*start.split(), prompt.rstrip("'")]
        run = fleetgate("run", "-m", model, "--project", project, "--classify", "none", "--", *words)
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            run, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
        started.append(process)
        time.sleep(0.7)
    return started


def on_a_terminal(command: list[str], environment: dict[str, str], seconds: float = 20.0) -> str:
    """What a command prints on a terminal until it ends or the seconds have passed."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - the child
        os.execve(command[0], command, environment)
    termios.tcsetwinsize(terminal, (40, COLUMNS))
    printed, end = b"", time.monotonic() + seconds
    os.set_blocking(terminal, False)
    while time.monotonic() < end:
        try:
            printed += os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # the command has ended, and with it the terminal
            break
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    os.close(terminal)
    return printed.decode()


def draw(sections: list[tuple[str, str]]) -> str:
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    for number, (typed, printed) in enumerate(sections):
        if number:
            console.print()
        console.print(Text.assemble(("$ ", "bold green"), (typed, "bold")))
        for line in printed.replace("\r\n", "\n").rstrip("\n").split("\n"):
            console.print(Text.from_ansi(line.rsplit("\r", 1)[-1]), no_wrap=True, overflow="crop")
    picture = console.export_svg(title="fleetgate")
    picture = re.sub(r"\s*@font-face \{.*?\}\n", "\n", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono'")
    picture = re.sub(r"<!-- Generated with Rich.*?-->\n?", "", picture)
    return re.sub(r"[ \t]+\n", "\n", picture)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fg") as name:
        folder = Path(name)
        (folder / "config.toml").write_text(CONFIG)
        environment = {
            "FLEETGATE_HOME": str(folder / "state"),
            "FLEETGATE_CONFIG": str(folder / "config.toml"),
            "FLEETGATE_HOST": "build-1",
            "HOME": name,
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "TERM": "xterm-256color",
            "COLUMNS": str(COLUMNS),
            "LINES": "40",
            "LC_ALL": "C.UTF-8",
        }
        started = start_fleet(folder, environment)
        try:
            options = ["-m", "anthropic/claude-opus-4-6", "--project", "docs"]
            run = fleetgate("run", *options, "--classify", "none", "--", "claude", "-p", "update the docs")
            typed = f"fleetgate run {' '.join(options)} -- claude -p 'update the docs'"
            sections = [
                (typed, on_a_terminal(run, environment, 3.0)),
                ("fleetgate queue", on_a_terminal(fleetgate("queue"), environment)),
                ("fleetgate status", on_a_terminal(fleetgate("status"), environment)),
            ]
        finally:
            for process in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            for process in started:
                process.wait()
    for typed, printed in sections:
        print(f"$ {typed}\n{printed}")
    PICTURE.write_text(draw(sections))


if __name__ == "__main__":
    main()
