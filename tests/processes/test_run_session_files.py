"""An agent on a terminal is judged by what it wrote down itself (rules R2, R4): real processes, a made-up agent."""

from __future__ import annotations

import sys

import pytest

from tests.processes.fleet import FLEETGATE, Fleet, Terminal

pytestmark = pytest.mark.processes

OPUS, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6"
RUN = f"{FLEETGATE[0]} run"
REFUSED = r"""
import datetime, json, os, re, sys
folder = os.path.join(os.environ["HOME"], ".claude", "projects", re.sub(r"[^A-Za-z0-9]", "-", os.getcwd()))
os.makedirs(folder, exist_ok=True)
text = {"type": "text", "text": "API Error: Request rejected (429) · Rate limited"}
record = {"type": "assistant", "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
          "message": {"content": [text]}, "error": "rate_limit", "isApiErrorMessage": True, "apiErrorStatus": 429}
with open(os.path.join(folder, "one.jsonl"), "a") as file:
    file.write(json.dumps(record) + "\n")
print("on a terminal:", os.isatty(1))
sys.exit(int(sys.argv[-1]))
"""


@pytest.mark.parametrize(("own", "code"), [(1, 75), (0, 0)])
def test_r4_a_refusal_that_an_agent_on_a_terminal_wrote_down_backs_off_its_model(fleet: Fleet, own: int, code: int):
    claude = fleet.script("claude", f"#!{sys.executable}\n{REFUSED}")
    with Terminal(fleet) as terminal:
        terminal.line(f"export HOME={fleet.folder}")
        terminal.line(f"{RUN} -m {OPUS},{SONNET} -- {claude} -p hi {own}; echo code=$?")
        seen = terminal.wait(r"code=\d+\r\n")
        assert "on a terminal: True" in seen
        assert seen.count("on a terminal") == 1, "it is not started again: whether it had worked is not known"
        assert f"code={code}\r\n" in seen, "of a session that the user left, its own code counts"
        assert "hit a rate limit" in seen
        fleet.until(fleet.is_empty)
    assert list(fleet.state.backoffs) == [OPUS]
