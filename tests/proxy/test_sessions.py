"""Calls in flight of an agent's session (rule W7): counted, shown and capped, through the real proxy."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleetgate.proxy.sessions import SESSION_HEADERS, session_name, session_of
from tests.proxy.proxied import Proxied
from tests.proxy.upstream import RawUpstream, read_request

CLAUDE = "x-claude-code-session-id"
ANSWER = json.dumps(
    {"id": "1", "model": "m1", "choices": [{"message": {"role": "assistant", "content": "hi"}}]}
).encode()


class CountedUpstream(RawUpstream):
    """Answers every call when the test says so, and counts how many of each session are under way at once."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.lock = threading.Lock()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self.go = threading.Semaphore(0)
        self.free = threading.Event()

    def serve(self, connection: socket.socket) -> None:
        lines = read_request(connection).decode("latin-1").split("\r\n")
        said = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
        session = next((said[name.decode()] for name in SESSION_HEADERS if name.decode() in said), "")
        with self.lock:
            self.now[session] += 1
            self.most[session] = max(self.most[session], self.now[session])
        if not self.free.is_set():
            self.go.acquire(timeout=60)
        with self.lock:
            self.now[session] -= 1
            self.served[session] += 1
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(ANSWER)}\r\nConnection: close"
        )
        connection.sendall(head.encode() + b"\r\n\r\n" + ANSWER)

    def finish(self) -> None:
        """From now on every call is answered at once."""
        self.free.set()
        for _ in range(200):
            self.go.release()


@pytest.fixture
def upstream() -> Iterator[CountedUpstream]:
    with CountedUpstream() as made:
        yield made
        made.finish()


def test_w7_forty_calls_of_one_session_are_four_at_once_and_others_do_not_wait_for_them(
    proxied: Callable[..., Proxied], upstream: CountedUpstream
) -> None:
    gate = proxied(upstream.url, requests="session = 4\nfake = { cap = 30, on_429 = 'pause', cooldown = 0 }")
    with ThreadPoolExecutor(60) as pool:
        wild = [pool.submit(gate.chat, **{CLAUDE: "wild"}) for _ in range(40)]
        gate.wait_until(lambda: len(gate.tickets()) == 36, "the rest of the session waits")
        others = [pool.submit(gate.chat, **{"session-id": f"calm-{each}"}) for each in range(8)]
        others += [pool.submit(gate.chat) for _ in range(6)]  # of no session: nothing caps these
        gate.wait_until(lambda: sum(upstream.now.values()) == 18, "all the others are under way")
        assert upstream.now["wild"] == 4
        (ticket, *_) = gate.tickets()
        assert (ticket["session"], ticket["reason"]["code"]) == ("wild", "concurrency_cap")
        assert ticket["reason"]["pool"] == "session:wild"
        sessions = Counter(lease["session"] or "" for lease in gate.leases())
        assert sessions == {"wild": 4, "": 6, **{f"calm-{each}": 1 for each in range(8)}}
        full = [view for view in gate.get("/v1/status").json["pools"] if view["selector"] == "session"]
        assert [(view["pool"], view["in_flight"], view["queued"]) for view in full] == [("session:wild", 4, 36)]
        assert "session:" not in gate.get("/metrics").body.decode(), "no series for each session"
        assert "wild" in gate.cli("ps").stdout
        assert "wild" in gate.cli("queue").stdout
        upstream.finish()
        answers = [each.result(60) for each in [*wild, *others]]
    assert {answer.status for answer in answers} == {200}, "they wait, and are not refused"
    assert upstream.most["wild"] == 4
    assert upstream.served["wild"] == 40


def test_w7_without_a_cap_a_session_is_shown_and_not_held_back(
    proxied: Callable[..., Proxied], upstream: CountedUpstream
) -> None:
    gate = proxied(upstream.url)
    with ThreadPoolExecutor(20) as pool:
        calls = [pool.submit(gate.chat, **{CLAUDE: "one"}) for _ in range(12)]
        gate.wait_until(lambda: upstream.now["one"] == 12, "all are under way")
        assert {lease["session"] for lease in gate.leases()} == {"one"}
        upstream.finish()
        assert {each.result(60).status for each in calls} == {200}


def test_w7_a_cap_on_sessions_is_set_and_removed_at_run_time(
    proxied: Callable[..., Proxied], upstream: CountedUpstream
) -> None:
    gate = proxied(upstream.url)
    assert gate.cli("cap", "set", "session", "1").returncode == 0
    with ThreadPoolExecutor(20) as pool:
        calls = [pool.submit(gate.chat, **{CLAUDE: "one"}) for _ in range(3)]
        gate.wait_until(lambda: len(gate.tickets()) == 2, "two wait")
        gate.wait_until(lambda: upstream.now["one"] == 1, "one is under way")
        assert gate.cli("cap", "rm", "session").returncode == 0
        gate.wait_until(lambda: upstream.now["one"] == 3, "all are under way")
        upstream.finish()
        assert {each.result(60).status for each in calls} == {200}
    refused = gate.cli("cap", "set", "session", "1", "--kind", "agents")
    assert refused.returncode == 64
    assert "kind requests" in refused.stderr


def test_w7_sessions_with_hostile_ids_leave_nothing_behind(
    proxied: Callable[..., Proxied], upstream: CountedUpstream
) -> None:
    upstream.finish()
    gate = proxied(upstream.url, requests="session = 2")
    with ThreadPoolExecutor(8) as pool:
        ids = [f"{'x' * 5_000}{each}" for each in range(40)] + ["../../etc", "a b", "session:one", "\x1b[31mred"]
        answers = list(pool.map(lambda ident: gate.chat(**{CLAUDE: ident}), ids))
    assert {answer.status for answer in answers} <= {200, 400}
    assert [answer.status for answer in answers[:43]] == [200] * 43
    assert [view["selector"] for view in gate.get("/v1/status").json["pools"]] == ["host"]


def test_w7_an_id_that_is_long_or_unusual_is_known_by_its_hash():
    uuid = "4c439df3-bf28-4d6e-b55c-cc0dec0fea65"
    assert session_name(uuid.encode()) == uuid
    assert session_name(b"ses_e10955cc8ffe0oXdqtDK3UataY") == "ses_e10955cc8ffe0oXdqtDK3UataY"
    hashed = {session_name(each) for each in (b"x" * 41, b"x" * 42, b"a b", b"\xff\xfe", b"a\x1b[31m", b"--", b"a/b")}
    assert len(hashed) == 7
    assert all(len(each) == 24 and each.isalnum() for each in hashed)
    assert session_name(b"  ") == session_name(b"") == ""


def test_w7_what_a_client_says_goes_before_what_its_agent_says_and_that_before_its_run():
    claude, codex = {CLAUDE.encode(): b"c1"}, {b"session-id": b"c2"}
    assert session_of(claude | codex, b"mine", "run1") == "mine"
    assert session_of(codex | claude, None, "run1") == "c1"
    assert session_of(codex, None, "run1") == "c2"
    assert session_of({}, None, "run1") == "run1"
    assert session_of({}, None, "") == ""
    assert session_of(claude, b"", "") == "", "an empty one takes it out of its session"
