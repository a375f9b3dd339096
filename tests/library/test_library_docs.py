"""docs/library.md and docs/events.md say what is true: examples are run, and nothing is left out."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import fleetgate
from fleetgate.core import events as ev
from fleetgate.core.entities import Reason, Rule, Spec, Ticket
from fleetgate.core.views.wait_reasons import CODES

DOCS = Path(__file__).parents[2] / "docs"
LIBRARY = (DOCS / "library.md").read_text()
EVENTS = (DOCS / "events.md").read_text()

EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", LIBRARY, re.DOTALL)


def test_every_example_says_what_it_prints() -> None:
    assert len(EXAMPLES) == LIBRARY.count("```python") >= 6


@pytest.mark.parametrize(("program", "output"), EXAMPLES, ids=[str(number) for number in range(len(EXAMPLES))])
def test_an_example_of_the_library_page_prints_what_the_page_says(program: str, output: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)


@pytest.mark.parametrize("name", fleetgate.__all__)
def test_everything_that_is_exported_is_on_the_library_page(name: str) -> None:
    assert getattr(fleetgate, name) is not None
    if name not in ("Gate", "Leased", "PoolView", "TicketView", "Reason"):  # what these are is told by their use
        assert re.search(rf"\b{name}\b", LIBRARY), f"docs/library.md does not mention {name}"


@pytest.mark.parametrize("face", [fleetgate.Gate, fleetgate.sync.Gate])
def test_Y2_both_faces_have_every_method_with_the_same_arguments(face: type) -> None:
    methods = [name for name in dir(fleetgate.Gate) if not name.startswith("_")]
    assert {"lease", "try_lease", "set_cap", "events", "close"} <= set(methods)
    for name in methods:
        if name != "close":
            assert f"gate.{name}(" in LIBRARY, f"docs/library.md does not mention gate.{name}"
        ours = inspect.signature(getattr(fleetgate.Gate, name)).parameters
        theirs = inspect.signature(getattr(face, name)).parameters
        assert [*ours] == [*theirs] or "options" in theirs, name


@pytest.mark.parametrize("name", [*inspect.signature(fleetgate.Gate.lease).parameters][1:])
def test_every_argument_of_a_lease_is_on_the_library_page(name: str) -> None:
    assert f"| `{name}` |" in LIBRARY


# Events.

TYPES: dict[str, Any] = {kind.__struct_config__.tag: kind for kind in get_args(ev.Event)}


def section(page: str, heading: str) -> str:
    found = re.search(rf"^### `{heading}`\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, f"docs/events.md has no section `{heading}`"
    return found[1]


def documented(text: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


@pytest.mark.parametrize("tag", TYPES)
def test_every_event_is_on_its_page_with_every_field(tag: str) -> None:
    assert documented(section(EVENTS, tag)) == set(TYPES[tag].__struct_fields__)


@pytest.mark.parametrize("kind", [Ticket, Spec, Reason, Rule])
def test_every_record_in_an_event_is_on_the_page_with_every_field(kind: Any) -> None:
    assert documented(section(EVENTS, kind.__name__.lower())) == set(kind.__struct_encode_fields__)


def test_the_page_describes_no_event_that_does_not_exist() -> None:
    records = {"ticket", "spec", "reason", "rule", "usage", "usage_row", "reading", "budget_rule", "plan_rule"}
    records |= {"access_key", "account_set"}
    assert set(re.findall(r"^### `(\w+)`$", EVENTS, re.MULTILINE)) == {*TYPES, *records}


@pytest.mark.parametrize("code", CODES)
def test_A6_every_reason_is_on_the_page(code: str) -> None:
    assert f"| `{code}` |" in EVENTS


def test_the_example_on_the_page_is_an_event_as_history_prints_it() -> None:
    (line,) = re.findall(r"```json\n(.*?)\n```", EVENTS, re.DOTALL)
    told = msgspec.json.decode(line)
    assert told.keys() == {"seq", "at", "type", "provider", "account", *ev.Released.__struct_fields__}
