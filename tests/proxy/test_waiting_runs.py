"""A run can tell that its agent is silent because its calls wait in the gate's own queue, or at the provider."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import sleep

import pytest

from fleetgate.core.errors import FleetgateError
from fleetgate.gate.node import discovery
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.slots.node_gate import NodeGate
from fleetgate.gate.slots.slot_gate import SlotGate
from fleetgate.log import open_log
from tests.proxy.proxied import CHAT, MESSAGES, Proxied


def test_a_run_is_told_that_its_calls_wait_in_the_queue_or_are_in_flight(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests="fake = { cap = 1, cooldown = 0 }")
    gate.provider.latency_s = 60
    mine, other = (gate.ok("POST", "/v1/leases", {"models": ["umans/coder"], "wait_s": 0})["lease"] for _ in range(2))
    folder = str(gate.home)
    direct = DirectGate(open_log(f"sqlite://{folder}"), folder=folder)

    def no_store() -> SlotGate:
        raise FleetgateError("the node is there, and is asked")

    path = discovery.socket_path(folder, f"sqlite://{folder}")
    remote = NodeGate(path, None, folder, open_direct=no_store, start=None, tell=print, filed=True)
    with gate.begin(path=f"/l/{other}/fake/chat/completions"):
        gate.provider.wait_until(lambda stats: stats.active == 1, 60)
        assert direct.has_open_calls(other), "it is at the provider"
        assert not direct.has_open_calls(mine)
        with gate.begin(CHAT, f"/l/{mine}/fake/chat/completions"):
            gate.wait_until(gate.tickets, "the second waits")
            for each in (direct, remote):
                assert each.has_open_calls(mine)
                assert each.has_open_calls(other)
        gate.wait_until(lambda: not gate.tickets(), "it has left")
        assert not direct.has_open_calls(mine)
        assert not remote.has_open_calls(mine)
    direct.close()
    remote.close()
    for lease in (mine, other):
        gate.ok("POST", f"/v1/leases/{lease}/release", {})


# Prints a record, makes a call through the proxy, prints the answer.
AGENT = """#!/usr/bin/env python3
import json, os, urllib.request
def tell(**record): print(json.dumps(record), flush=True)
tell(type="system", subtype="init", session_id="s1")
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
body = json.dumps({"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}).encode()
request = urllib.request.Request(url, body, {"content-type": "application/json", "x-api-key": "key-of-a-client"})
urllib.request.urlopen(request).read()
tell(type="assistant", message={"content": []})
tell(type="result", subtype="success", is_error=False, result="done")
"""


@pytest.mark.timeout(120)
def test_an_agent_whose_call_waits_in_the_queue_is_not_ended_for_its_silence(
    proxied: Callable[..., Proxied], tmp_path: Path
) -> None:
    gate = proxied(requests="anthropic = { cap = 1, cooldown = 0 }")
    gate.provider.latency_s = 60
    program = tmp_path / "claude"
    program.write_text(AGENT)
    program.chmod(0o755)
    extra = "x-api-key: key-of-a-client\r\n"
    with gate.begin(MESSAGES, "/anthropic/v1/messages", extra):
        gate.provider.wait_until(lambda stats: stats.active == 1, 60)
        options = ["--proxied", "--silence", "3s", "-m", "none"]
        run = gate.spawn("run", *options, "--", str(program), "-p", "--output-format", "stream-json", "hi")
        gate.wait_until(gate.tickets, "its call waits")
        sleep(6)  # twice its silence: the time itself is what is tested
        assert run.poll() is None
        gate.provider.latency_s = 0
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert "done" in out
