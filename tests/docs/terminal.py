"""A shell in a clean home, in which the commands of one page run, and the comparison of what they print with the page.

Ids, numbers, times and cut names differ from run to run: a line of a page matches when everything else in it is equal.
"""

from __future__ import annotations

import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIMEOUT_S = 120.0  # for a machine that is busy with other things
SCENES = Path(__file__).with_name("scenes.sh")  # what setups may call
_END = "\x1e"

# A fake agent stays for FAKE_AGENT_S seconds, or until the file FAKE_AGENT_UNTIL exists, prints a sentence, and ends
# with FAKE_AGENT_CODE.
_AGENT = """#!/bin/sh
touch "$HOME/.started/$$"
if [ -n "$FAKE_AGENT_UNTIL" ]; then
    until [ -e "$FAKE_AGENT_UNTIL" ]; do sleep 0.1; done
else
    sleep "${FAKE_AGENT_S:-60}"
fi
echo "done: $(basename "$0")"
exit "${FAKE_AGENT_CODE:-0}"
"""
AGENTS = ("claude", "codex", "opencode", "gemini", "aider")

_ID = r"[2-9a-kmnp-z]{10}"
_NUMBER = r"~?\d[\d,.:]*(?:[kM]\b)?"
_TIME = r"(?:\d+(?:\.\d+)?(?:ms|min|s|m|h|d)\b)(?: \d+(?:s|m|h)\b)?"
_MOMENT = r"(?:\d{4}-)?\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?Z?)?"
_KINDS = (_MOMENT, _TIME, _ID, _NUMBER)
_VOLATILE = re.compile(rf"{_MOMENT}|{_TIME}|\b{_ID}\b|{_NUMBER}")


def pattern_of(line: str) -> str:
    """The regular expression for one line of a page. A cell that is cut may be cut elsewhere."""
    cells = re.split(r" {2,}", line.strip())
    return r"\s*" + r"\s+".join(_cell_pattern(cell) for cell in cells)


def _cell_pattern(cell: str) -> str:
    start, cut, end = cell.partition("…")
    if cut:
        return f"{_text_pattern(start[:4])}.*?{_text_pattern(end[-4:])}"
    return _text_pattern(cell)


def _text_pattern(text: str) -> str:
    parts, at = [], 0
    for match in _VOLATILE.finditer(text):
        kind = next(kind for kind in _KINDS if re.fullmatch(kind, match[0]))
        parts += [re.escape(text[at : match.start()]), f"(?:{kind})" if kind != _NUMBER else f"(?:{_TIME}|{_NUMBER})"]
        at = match.end()
    return "".join([*parts, re.escape(text[at:])])


def differences(expected: list[str], printed: list[str]) -> list[str]:
    """What is wrong with `printed`: lines of the page that are missing, and lines that the page does not have.

    A line `…` of the page stands for any lines. Messages of agents in the background may come in between.
    """
    left = [line.rstrip() for line in printed if line.strip()]
    problems, skipped = [], False
    for line in (each for each in expected if each.strip()):
        if line.strip() == "…":
            skipped = True
            continue
        found = next((at for at, each in enumerate(left) if re.fullmatch(pattern_of(line), each)), None)
        if found is None:
            problems.append(f"missing: {line}")
            continue
        if not skipped:
            problems += [f"not on the page: {each}" for each in left[:found] if not _is_message(each)]
        del left[: found + 1]
        skipped = False
    return problems + [f"not on the page: {each}" for each in left if not skipped and not _is_message(each)]


def _is_message(line: str) -> bool:
    return line.startswith(("fleetgate: ", "done: "))


class Terminal:
    """One bash for one page."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="", dir="/tmp"))  # short, as long lines are cut and wrapped
        home, programs = self._folder / "h", self._folder / "bin"
        (home / ".started").mkdir(parents=True)
        programs.mkdir()
        for name in AGENTS:
            (programs / name).write_text(_AGENT)
            (programs / name).chmod(0o755)
        venv = str(Path(sys.executable).parent)
        env = {
            "HOME": str(home),
            "PATH": f"{programs}:{venv}:/usr/local/bin:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "TERM": "dumb",
            "COLUMNS": "120",
            "FLEETGATE_HOST": "vm",
        }
        self._home = home
        self._user = f"{pwd.getpwuid(os.getuid()).pw_name}@vm"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            env=env,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._unread = b""
        self._type(f". {SCENES}")

    def run(self, command: str, expected: list[str] | None = None) -> list[str]:
        """What a command prints. One in the background has time for what the page expects of it."""
        command = re.sub(rf"(?<![\w-]){_ID}(?![\w=-])", self._real_id, command)
        printed = self._type(command)
        until = time.monotonic() + TIMEOUT_S
        while (
            expected and time.monotonic() < until and any("missing" in each for each in differences(expected, printed))
        ):
            if not command.rstrip().endswith("&"):
                break
            printed += self._type("sleep 0.1")
        return printed

    def _real_id(self, match: re.Match[str]) -> str:
        """The id of this run for one on the page, if a setup has set a variable of that name."""
        name = match[0]
        return f"${{{name}:-{name}}}" if name[0].isalpha() and not name.isalpha() else name

    def _type(self, command: str) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n__code=$?; printf '{_END}\\n'; (exit $__code)\n".encode())
        self._process.stdin.flush()
        text = self._read_until_end(command)
        return [line.replace(str(self._home), "/home/ann").replace(self._user, "ann@vm") for line in text.splitlines()]

    def _read_until_end(self, command: str) -> str:
        assert self._process.stdout is not None
        end, until = _END.encode() + b"\n", time.monotonic() + TIMEOUT_S
        while end not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not data:
                raise AssertionError(f"`{command}` did not end; it printed: {self._unread.decode(errors='replace')}")
            self._unread += data
        text, _, self._unread = self._unread.partition(end)
        return text.decode(errors="replace")

    def close(self) -> None:
        """End the shell and everything that the page started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for group in self._groups():
            try:
                os.killpg(group, signal.SIGKILL)
            except OSError:
                pass
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _groups(self) -> set[int]:
        """The process groups of this home: agents lead groups of their own."""
        groups = {self._process.pid}
        mark = f"HOME={self._home}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    groups.add(os.getpgid(int(entry.name)))
            except OSError:
                continue
        return groups - {os.getpgrp()}
