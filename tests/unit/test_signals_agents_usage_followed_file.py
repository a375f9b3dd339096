"""What Codex writes about its plan while it runs (rule W1): found without reading its session file again and again."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleetgate.signals.agents import agent_for
from fleetgate.signals.agents.usage import followed_file, records_of
from fleetgate.signals.agents.usage.followed_file import FollowedFile
from fleetgate.signals.agents.usage.records import AgentStart

BEGAN = 1_776_859_200_000
SESSION = "01a1ef6a-8072-71d3-a4d8-37e219fabb83"


class Rollout:
    """The session file of one run of Codex."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sessions" / "2026" / "04" / "22" / f"rollout-2026-04-22T12-00-00-{SESSION}.jsonl"
        self.path.parent.mkdir(parents=True)
        self.start = AgentStart((), {"CODEX_HOME": str(folder)}, "/w", BEGAN, (SESSION,))
        self.followed = FollowedFile(records_of(agent_for(["codex"])))

    def write(self, percent: float, at_ms: int = BEGAN + 5, end: str = "\n", **more: Any) -> None:
        payload = {"type": "token_count", "info": None, "rate_limits": {"primary": {"used_percent": percent}}, **more}
        at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
        with self.path.open("a") as file:
            file.write(json.dumps({"timestamp": at, "type": "event_msg", "payload": payload}) + end)

    def look(self) -> float | None:
        found = self.followed.look(self.start)
        return None if found is None or found.limits is None else found.limits["primary"]["used_percent"]


def test_w1_each_look_finds_the_last_of_what_is_new(tmp_path: Path):
    rollout = Rollout(tmp_path)
    assert rollout.look() is None, "there is no file yet"
    rollout.write(90.0, BEGAN - 5)
    assert rollout.look() is None, "it was written before the run"
    rollout.write(10.0)
    rollout.write(12.0)
    rollout.write(0, rate_limits=None)
    assert rollout.look() == 12.0
    assert rollout.look() is None, "nothing is new"
    rollout.write(13.0, end="")
    assert rollout.look() is None, "the line is not whole yet"
    with rollout.path.open("a") as file:
        file.write("\n")
    assert rollout.look() == 13.0


def test_w1_of_a_long_history_only_the_end_is_read_and_a_shorter_file_is_another_one(tmp_path: Path, monkeypatch: Any):
    rollout = Rollout(tmp_path)
    monkeypatch.setattr(followed_file, "_MOST_BYTES", 2_000)
    rollout.write(5.0)
    with rollout.path.open("a") as file:
        file.write("x" * 5_000 + "\n")
    rollout.write(20.0)
    assert rollout.look() == 20.0
    rollout.path.write_text("")
    rollout.write(1.0)
    assert rollout.look() == 1.0


def test_w1_what_is_no_regular_file_is_not_read(tmp_path: Path):
    rollout = Rollout(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("")
    rollout.path.symlink_to(secret)
    rollout.write(5.0)
    assert rollout.look() is None
    rollout.path.unlink()
    os.mkfifo(rollout.path)
    assert rollout.look() is None
