"""A run can tell that its agent is silent because its calls wait in the gate's own queue, or at the provider."""

from __future__ import annotations

from collections.abc import Callable

from headgate.core.errors import HeadgateError
from headgate.gate import meeting
from headgate.gate.direct import DirectGate
from headgate.gate.remote import RemoteGate
from headgate.gate.seats import SeatGate
from headgate.log import open_log
from tests.proxy.proxied import CHAT, Proxied


def test_a_run_is_told_that_its_calls_wait_in_the_queue_or_are_in_flight(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests="fake = { cap = 1, cooldown = 0 }")
    gate.provider.latency_s = 60
    mine, other = (gate.ok("POST", "/v1/leases", {"models": ["umans/coder"], "wait_s": 0})["lease"] for _ in range(2))
    folder = str(gate.home)
    direct = DirectGate(open_log(f"sqlite://{folder}"), folder=folder)

    def no_store() -> SeatGate:
        raise HeadgateError("the node is there, and is asked")

    remote = RemoteGate(meeting.socket_path(folder, f"sqlite://{folder}"), None, folder, open_direct=no_store)
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
