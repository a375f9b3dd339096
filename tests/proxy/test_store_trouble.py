"""A store in trouble while calls come and go (rules Q2, X2): they are held, then refused; and no slot is lost."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from fleetgate.testing.provider import FakeProvider
from tests.proxy.proxied import CHAT, MESSAGES, Proxied

ONE = "fake = { cap = 1, cooldown = 0 }\nanthropic = 1"

_HOLDER = """
import sys
from fleetgate.log import open_log
log = open_log(sys.argv[1])
log.lock()
print("held", flush=True)
sys.stdin.read()
log.unlock()
"""


@contextmanager
def _locked(gate: Proxied) -> Iterator[None]:
    """Another process has the store's write lock."""
    command = [sys.executable, "-c", _HOLDER, f"sqlite://{gate.home}"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=gate.environ)
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.stdin.close()


@contextmanager
def _full_disk(gate: Proxied) -> Iterator[None]:
    """The service can write nothing."""
    assert gate.process is not None
    most = resource.prlimit(gate.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(gate.process.pid, resource.RLIMIT_FSIZE, (0, most[1]))
    try:
        yield
    finally:
        resource.prlimit(gate.process.pid, resource.RLIMIT_FSIZE, most)


def test_q2_calls_wait_for_a_store_that_is_locked(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests=ONE)
    gate.chat()
    with ThreadPoolExecutor() as pool:
        with _locked(gate):
            held = [pool.submit(gate.chat) for _ in range(3)]
            answer = gate.chat("/anthropic/v1/messages", MESSAGES, x_fleetgate_hold="300ms")
            assert answer.status == 503
            assert answer.json["error"]["type"] == "overloaded_error", "as the provider would say it"
            assert "lock is held by process" in answer.json["error"]["message"]
            assert int(answer.headers["retry-after"]) >= 1
            assert gate.provider.stats.calls == 1
            assert not any(one.done() for one in held)
        assert [one.result().status for one in held] == [200] * 3
    gate.check_nothing_is_held()


def test_q2_calls_wait_for_a_store_that_cannot_be_written_and_slots_come_back(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(chunks=2, chunk_delay_s=0.5) as provider:
        gate = proxied(provider, requests=ONE)
        with ThreadPoolExecutor() as pool:
            first = pool.submit(gate.chat, body={**CHAT, "stream": True})
            provider.wait_until(lambda stats: stats.active == 1)
            with _full_disk(gate):
                held = [pool.submit(gate.chat) for _ in range(3)]
                assert first.result().status == 200, "what is under way goes on"
                answer = gate.chat("/anthropic/v1/messages", MESSAGES, x_fleetgate_hold="300ms")
                assert answer.status == 503
                assert answer.json["error"]["type"] == "overloaded_error"
                assert not any(one.done() for one in held)
                assert provider.stats.calls == 1
            assert [one.result().status for one in held] == [200] * 3
        gate.check_nothing_is_held()
        assert gate.chat().status == 200


def test_q2_a_slot_that_could_not_be_given_back_is_given_back_when_the_store_works(
    proxied: Callable[..., Proxied],
) -> None:
    with FakeProvider(chunks=2, chunk_delay_s=0.3) as provider:
        gate = proxied(provider, requests=ONE)
        with gate.begin({**CHAT, "stream": True}) as client:
            provider.wait_until(lambda stats: stats.active == 1)
            with _full_disk(gate):
                got = b""
                while b"[DONE]" not in got:
                    got += (part := client.recv(65536))
                    assert part, got
                provider.wait_until(lambda stats: stats.active == 0)
                gate.wait_until(lambda: gate.get("/v1/status").status, "it answers")
        gate.check_nothing_is_held()  # and nobody else asks for anything


def test_q2_clients_that_leave_while_the_store_is_locked_leave_nothing(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests=ONE)
    gate.chat()
    with _locked(gate):
        for _ in range(5):
            with gate.begin():
                pass
        gate.wait_until(lambda: len(gate.lines()) == 6, "they have left")
    gate.check_nothing_is_held()
    assert gate.chat().status == 200
    assert gate.provider.stats.calls == 2, "nobody's call was made for nothing"
