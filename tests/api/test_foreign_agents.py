"""`GET /v1/capacity` counts agents that were started elsewhere, and no longer when they have ended."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.api.served import Served

OPUS = "anthropic/claude-opus-4-6"
WORD = f"opencode-{os.getpid()}"


def test_capacity_is_red_while_foreign_agents_fill_the_pool_and_green_when_they_have_ended(tmp_path: Path):
    config = f"[[census]]\nmatch = '{WORD}.*-m (?P<model>\\S+)'\n[agents]\nhost = 50\n\"anthropic/claude-opus-*\" = 1\n"
    with Served(tmp_path, config) as served:
        path = f"/v1/capacity?models={OPUS}"
        with subprocess.Popen(
            ["sh", "-c", "echo; read x", WORD, "-m", OPUS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as agent:
            assert agent.stdout is not None
            agent.stdout.readline()
            assert served.get(path).json["level"] == "red"
            agent.kill()
        assert served.get(path).json["level"] != "red"
