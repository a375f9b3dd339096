"""H6: `fleetgate serve` and what surrounds it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.api.served import Served


def test_h6_a_port_that_is_taken_is_a_sentence_and_69(tmp_path: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        refused = Served(tmp_path).cli("serve", "--port", str(other.getsockname()[1]))
    assert refused.returncode == 69
    assert refused.stderr.count("\n") == 1
    assert "is taken by another process" in refused.stderr
    assert "--port" in refused.stderr


def test_h6_the_config_says_where_it_listens(tmp_path: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = Served(tmp_path, f'[serve]\nhost = "127.0.0.1"\nport = {port}\n').cli("serve")
    assert refused.returncode == 69
    assert f"{port}" in refused.stderr
    assert "is taken by another process" in refused.stderr


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["--port", "70000"], 64, "0 (any that is free) to 65535"),
        (["--port", "x"], 64, "port"),
        (["--host", "no.such.host.invalid"], 69, "no such address"),
        (["--host", "203.0.113.7"], 69, "cannot listen"),
        (["--workers", "0x"], 64, ""),
    ],
)
def test_q1_what_cannot_be_is_refused_and_says_what_is_valid(tmp_path: Path, argv: list[str], code: int, says: str):
    refused = Served(tmp_path).cli("serve", *argv)
    assert refused.returncode == code
    assert says in refused.stderr


def test_c6_a_bad_config_file_stops_it_with_78(tmp_path: Path):
    refused = Served(tmp_path, "[serve]\ncolour = 1\n").cli("serve", "--port", "0")
    assert refused.returncode == 78


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_h6_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals):
    served = Served(tmp_path).start()
    try:
        process = served.process
        assert process is not None
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out == ""
        assert err.splitlines() == [f"fleetgate serves at http://127.0.0.1:{served.port}"]
        assert not (served.home / "serve.json").exists()
    finally:
        served.kill()


def test_h6_config_show_names_the_address_while_it_runs(tmp_path: Path):
    served = Served(tmp_path).start()
    try:
        assert f"http://127.0.0.1:{served.port}" in served.cli("config", "show").stdout
        served.kill()  # and leaves its file behind
        assert "not running" in served.cli("config", "show").stdout
        refused = served.cli("open", "--print")
        assert refused.returncode == 69
        assert "fleetgate serve" in refused.stderr
    finally:
        served.kill()


def test_h6_it_stands_beside_other_processes_on_the_same_store(fresh: Served):
    fresh.cap("host", 1)
    running = fresh.spawn("run", "-m", "x/y", "--", "sleep", "60")
    try:
        (lease,) = fresh.wait_until(lambda: fresh.get("/v1/leases").json["leases"], "the run has its slot")
        assert lease["command"] == "sleep 60"
        waiting = fresh.spawn("run", "-m", "x/y", "--", "true")
        try:
            (ticket,) = fresh.wait_until(lambda: fresh.get("/v1/tickets").json["tickets"], "the other waits")
            assert ticket["reason"]["code"] == "concurrency_cap"
            fresh.cap("host", 2)
            assert waiting.wait(60) == 0
        finally:
            waiting.kill()
            waiting.communicate()
    finally:
        running.kill()  # its agent runs on, and keeps the slot
        agent = fresh.get("/v1/leases").json["leases"][0]["child_pid"]
        os.kill(agent, signal.SIGKILL)
        running.communicate()
    fresh.wait_until(lambda: not fresh.get("/v1/leases").json["leases"], "the dead one's slot is taken back")


def test_c2_an_edited_config_file_comes_into_force(fresh: Served):
    fresh.config.write_text("[requests]\nnewcomer = 7\n")
    fresh.wait_until(
        lambda: any(cap["selector"] == "newcomer" for cap in fresh.get("/v1/caps").json["caps"]),
        "the file is read anew",
    )
    fresh.config.write_text("[requests\n")
    assert fresh.get("/v1/status").status == 200


def test_h4_health_and_readiness(fresh: Served):
    assert fresh.get("/healthz").json == {"status": "ok", "error": None}
    assert fresh.get("/readyz").json == {"status": "ok", "error": None}
