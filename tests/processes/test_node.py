"""The node of a host: runs ask it over a socket, keep no store and no connection while they wait, and outlive it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from fleetgate.core import events as ev
from fleetgate.gate.node import discovery, protocol
from tests.processes.fleet import FLEETGATE, Fleet, Run, is_alive, rss_mb

pytestmark = pytest.mark.processes


def start_node(fleet: Fleet, *options: str) -> Run:
    run = fleet.start([*FLEETGATE, "node", *options])
    fleet.until(lambda: "listens" in run.err or run.code is not None, what="a node that listens")
    assert run.code is None, run
    return run


def socket_path(fleet: Fleet) -> str:
    return discovery.socket_path(str(fleet.home), f"sqlite://{fleet.home}")


def open_files(run: Run) -> list[str]:
    found = []
    for name in Path(f"/proc/{run.pid}/fd").iterdir():
        try:
            found.append(str(name.readlink()))
        except OSError:
            continue
    return found


def test_a1_runs_through_a_node_keep_the_cap(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 3\n")
    fleet.slots = 3
    start_node(fleet)
    runs = [fleet.run("--", *fleet.sleeper(f"s{number}", 0.2)) for number in range(12)]
    assert [run.wait(60) for run in runs] == [0] * 12
    assert fleet.most_at_once() <= 3
    assert len(fleet.lives()) == 12
    assert fleet.is_empty()
    fleet.check_log()


def test_l2_a_run_that_waits_through_a_node_has_neither_store_nor_connection(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    node = start_node(fleet)
    held = fleet.occupy()
    run = fleet.waiting("--", "true")
    fleet.until(lambda: "position 1" in run.err, what="a word of where it stands")
    fleet.until(lambda: sum("socket" in name for name in open_files(run)) == 1, what="no socket but the mailbox")
    assert not any("fleetgate.db" in name for name in open_files(run))
    assert rss_mb(run.pid) < 25
    fleet.free(held)
    assert run.wait() == 0
    assert is_alive(node.pid)


def test_l2_runs_go_on_by_themselves_when_the_node_is_killed(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 2\n")
    fleet.slots = 2
    node = start_node(fleet)
    go = fleet.folder / "go"
    runs = [fleet.run("--", *fleet.sleeper(f"s{number}", go)) for number in range(6)]
    fleet.until(
        lambda: fleet.in_queue() == 4 and len(fleet.notes("start")) == 2, what="two that run and four that wait"
    )
    node.signal(signal.SIGKILL)
    go.touch()
    assert [run.wait(60) for run in runs] == [0] * 6
    assert fleet.most_at_once() <= 2
    assert len(fleet.events_of(ev.Queued)) == 4  # all kept their places
    assert fleet.is_empty()


def test_l2_another_node_takes_the_place_of_a_killed_one(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    start_node(fleet).signal(signal.SIGKILL)
    start_node(fleet)
    assert fleet.done("--", "true").code == 0
    second = fleet.start([*FLEETGATE, "node"])
    assert second.wait() == 0
    assert "another node" in second.err


def test_q2_a_stopped_node_delays_no_run_for_long(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    node = start_node(fleet)
    node.signal(signal.SIGSTOP)
    assert fleet.done("--", "true", within_s=40).code == 0
    node.signal(signal.SIGCONT)
    fleet.until(fleet.is_empty, what="an empty gate")
    fleet.check_log()


def test_r2_a_signal_in_the_queue_leaves_it_through_the_node(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    start_node(fleet)
    fleet.occupy()
    run = fleet.waiting("--", "true")
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert fleet.in_queue() == 0


def test_r3_refusals_and_time_limits_through_a_node(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    start_node(fleet)
    fleet.occupy()
    refused = fleet.done("--no-wait", "--json", "--", "true")
    assert refused.code == 75
    assert '"concurrency_cap"' in refused.out
    late = fleet.done("--wait", "300ms", "--", "true")
    assert late.code == 75
    assert "no slot within 300ms" in late.err
    assert fleet.in_queue() == 0


def test_l4_acquire_and_release_through_a_node(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    start_node(fleet)
    taken = fleet.start([*FLEETGATE, "acquire", "--pid", str(os.getpid())])
    assert taken.wait() == 0
    assert list(fleet.state.leases) == [taken.out.strip()]
    assert fleet.start([*FLEETGATE, "release", taken.out.strip()]).wait() == 0
    assert fleet.is_empty()


def test_l2_the_node_reclaims_slots_of_dead_holders_while_no_run_waits(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    start_node(fleet)
    run = fleet.run("--", *fleet.sleeper("s", 600))
    fleet.until(lambda: fleet.has_started("s"), what="the agent")
    (life,) = fleet.lives()
    run.signal(signal.SIGKILL)
    fleet.kill_sleeper(life.pid)
    fleet.until(fleet.is_empty, what="its slot taken back")
    assert fleet.events_of(ev.Reclaimed)[-1][1].cause == "lost"


def test_h5_a_node_that_no_process_needs_ends(fleet: Fleet) -> None:
    node = start_node(fleet, "--idle", "1")
    assert fleet.done("--", *fleet.sleeper("s", 2)).code == 0
    assert fleet.lives()[0].ended is not None
    assert node.wait() == 0
    assert not Path(socket_path(fleet)).exists()


@pytest.mark.parametrize(
    "sent", [b"\xff\xff\xff\xff", b"\0\0\0\x02{}", b"\0\0\0\x05nojs!", b"\0\0\0\x40", b"GET / HTTP"]
)
def test_q1_bytes_that_are_not_a_request_harm_no_other_client(fleet: Fleet, sent: bytes) -> None:
    node = start_node(fleet)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(socket_path(fleet))
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        client.settimeout(10)
        answer = client.recv(65536)
    assert answer == b"" or b"Version" in answer
    assert fleet.done("--", "true").code == 0
    assert node.code is None


def test_h5_the_socket_is_its_owners_alone(fleet: Fleet) -> None:
    start_node(fleet)
    assert Path(socket_path(fleet)).stat().st_mode & 0o777 == 0o600
    assert Path(socket_path(fleet)).parent.stat().st_mode & 0o777 == 0o700


def test_r1_a_node_of_another_release_is_named_and_done_without(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    fleet.occupy()
    fleet.free(*fleet.state.leases)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(socket_path(fleet))
    listener.listen(8)

    def speak() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if client.recv(4):
                client.recv(65536)
                client.sendall(
                    protocol.frame(protocol.Answer(wrong=protocol.Wrong("Version", "it speaks version 9, not 1")))
                )
            client.close()

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    run = fleet.done("--", "true")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(60)
    assert run.code == 0
    assert "another release (it speaks version 9, not 1): restart it" in run.err
    assert len(fleet.events_of(ev.Released)) == 2


def test_r9_a_session_is_remembered_through_a_node(fleet: Fleet) -> None:
    """What goes beside the log with a release arrives."""
    start_node(fleet)
    session = "6f1c1e5a-0000-4000-8000-000000000001"
    result = {"type": "result", "subtype": "success", "is_error": False, "session_id": session, "result": "ok"}
    told = msgspec.json.encode(result).decode()
    agent = fleet.script("claude", f"#!/bin/sh\necho \"$@\" >> args\necho '{told}'\n")
    for _ in range(2):
        assert fleet.done("--session", "k", "--", agent, "-p", "hi", "--output-format", "json").code == 0
    assert session in (fleet.folder / "args").read_text().splitlines()[1]


def test_r1_the_service_is_the_node_of_its_host(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    service = fleet.start([*FLEETGATE, "serve", "--port", "0"])
    fleet.until(lambda: "serves at" in service.err, what="a service")
    fleet.until(lambda: Path(socket_path(fleet)).exists(), what="a socket")
    held = fleet.occupy()
    run = fleet.waiting("--", "true")
    fleet.until(lambda: "position 1" in run.err, what="a word of where it stands")
    assert not any("fleetgate.db" in name for name in open_files(run))
    fleet.free(held)
    assert run.wait() == 0
    second = fleet.start([*FLEETGATE, "node"])
    assert second.wait() == 0
    assert "another node" in second.err
    service.signal(signal.SIGTERM)
    assert service.wait() == 0
    assert not Path(socket_path(fleet)).exists()
    assert fleet.done("--", "true").code == 0


def test_q2_a_node_whose_folder_is_gone_ends(fleet: Fleet) -> None:
    node = start_node(fleet, "--idle", "1h")
    shutil.rmtree(fleet.home)
    assert node.wait() == 0
    assert "no process can find it" in node.err
