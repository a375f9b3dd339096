"""A real agent asks Fleetgate before it delegates: it starts `fleetgate mcp` itself, and calls a tool."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.agents.calling import bare_environment, claude
from tests.agents.installing import CannotInstall, installed
from tests.agents.running import FLEETGATE, WITHIN_S, Place

TOOL = "mcp__fleetgate__capacity"
ARGUMENTS = {"models": ["anthropic/claude-opus-4-6"]}


def tool_call(name: str, arguments: dict[str, Any]) -> str:
    """The stream of an answer that calls a tool, as Anthropic sends it."""
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-6", "content": []}
    block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**start, "usage": {"input_tokens": 9, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def tool_results(provider: FakeProvider) -> list[str]:
    """What the agent sent back to the model as results of tools."""
    found = []
    for request in provider.seen:
        if request.path.startswith("/v1/messages") and isinstance(request.json(), dict):
            for message in request.json().get("messages", []):
                parts = message["content"] if isinstance(message["content"], list) else []
                found += [json.dumps(part) for part in parts if part.get("type") == "tool_result"]
    return found


def test_claude_code_asks_for_capacity_over_mcp(place: Place):
    try:
        program = installed("claude")
    except CannotInstall as error:
        pytest.skip(str(error))
    servers = {"mcpServers": {"fleetgate": {"command": FLEETGATE, "args": ["mcp"]}}}
    fault = Fault(status=200, body=tool_call(TOOL, ARGUMENTS), headers={"Content-Type": "text/event-stream"})
    with FakeProvider(faults=[fault]) as provider:
        call = claude(str(program), provider.url, place.home, "May I start another agent?")
        ran = subprocess.run(
            [*call.argv, "--mcp-config", json.dumps(servers), "--strict-mcp-config", "--allowedTools", TOOL],
            env={**bare_environment(place.home), **call.env, "FLEETGATE_HOME": str(place.home / "fleetgate")},
            cwd=place.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        results = tool_results(provider)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert any('\\"level\\":\\"green\\"' in result and "Start it now" in result for result in results), results
