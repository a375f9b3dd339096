"""The programs and config files in examples/ run, with fake agents, and print what they promise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetgate.config.file import load
from tests.docs.pages import ROOT
from tests.docs.terminal import Terminal

EXAMPLES = ROOT / "examples"
PRINTS = {
    "issues.sh 101 102 103": "3",
    "night.sh": "all done",
    "fallback.sh": "then: openai/gpt-5",
    "hold_a_slot.sh": "running: umans/coder",
    "async_calls.py": "20 answers, the last is: answer 19 from umans/coder",
    "thread_calls.py": "19 answered, 1 refused",
}


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    terminal.run(f"export FAKE_AGENT_S=0.1; cd {EXAMPLES}")
    yield terminal
    terminal.close()


@pytest.mark.parametrize("command", PRINTS)
def test_an_example_runs_and_prints_its_result(terminal: Terminal, command: str):
    program = "python " if ".py" in command else "sh "
    assert terminal.run(f"{program}{command}")[-1] == PRINTS[command]


def test_the_example_over_http_gets_a_slot_and_releases_it(terminal: Terminal):
    printed = terminal.run("fleetgate serve --port 0 &", ["fleetgate serves at http://127.0.0.1:4180"])
    (url,) = re.findall(r"http://127\.0\.0\.1:\d+", "\n".join(printed))
    assert terminal.run(f"sh http_lease.sh {url}") == ["got a slot", "released it"]
    terminal.run("kill $!; wait $!")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_an_example_of_a_config_file_is_valid(path: Path):
    loaded = load(str(path), required=True)
    assert loaded is not None
    assert loaded.settings.rules


def test_every_example_is_listed_and_tested():
    files = {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    listed = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))
    tested = (
        {command.split()[0] for command in PRINTS} | {"http_lease.sh"} | {each for each in files if ".toml" in each}
    )
    assert files == listed == tested
