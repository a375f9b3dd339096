"""`[agents] subagents` really limits the helpers of real agents (rule W7): each is made to start six at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.agents.calling import CALLERS
from tests.agents.installing import CannotInstall, installed
from tests.agents.running import Place

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

WANTED = 6
TASK = "Say hello to the world."


def stream(events: list[dict[str, Any]]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def claude_helpers() -> str:
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-6", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**start, "usage": {"input_tokens": 9, "output_tokens": 1}}}
    ]
    for index in range(WANTED):
        block = {"type": "tool_use", "id": f"toolu_{index}", "name": "Agent", "input": {}}
        wanted = {"description": f"helper {index}", "prompt": TASK, "subagent_type": "general-purpose"}
        delta = {"type": "input_json_delta", "partial_json": json.dumps({**wanted, "run_in_background": False})}
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}
    return stream([*events, end, {"type": "message_stop"}])


def codex_helpers() -> str:
    items = [
        {
            "type": "function_call",
            "id": f"fc_{index}",
            "call_id": f"call_{index}",
            "namespace": "multi_agent_v1",
            "name": "spawn_agent",
            "arguments": json.dumps({"message": TASK}),
        }
        for index in range(WANTED)
    ]
    usage = {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15}
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item} for index, item in enumerate(items)
    ]
    begin = {"type": "response.created", "response": {"id": "resp_1"}}
    return stream(
        [begin, *done, {"type": "response.completed", "response": {"id": "resp_1", "output": items, "usage": usage}}]
    )


def refused(provider: FakeProvider) -> int:
    """How many helpers the agent told its model that it would not start."""
    said = [json.dumps(request.json()) for request in provider.seen]
    return max(text.count("oncurrent subagent limit reached") + text.count("thread limit reached") for text in said)


@pytest.mark.parametrize(("agent", "helpers"), [("claude", claude_helpers), ("codex", codex_helpers)])
@pytest.mark.parametrize("most", [2, 4])
def test_w7_a_real_agent_starts_as_many_helpers_as_the_config_allows(
    agent: str, helpers: Callable[[], str], most: int, place: Place
) -> None:
    try:
        program = installed(agent)
    except CannotInstall as error:
        pytest.skip(str(error))
    place.configure(f"[agents]\nsubagents = {most}\n")
    first = Fault(status=200, body=helpers(), headers={"Content-Type": "text/event-stream"})
    with FakeProvider(faults=[first], latency_s=3.0) as provider:
        call = CALLERS[agent](str(program), provider.url, place.home, "Start helpers.")
        found = place.run(call)
    assert found.exit_code == 0, found.err
    assert refused(provider) == WANTED - most
    assert provider.stats.most_at_once <= most + 1, "the helpers, and the agent itself"
