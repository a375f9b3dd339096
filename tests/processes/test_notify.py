"""T1 with real processes: a webhook that fails half the time, a mail server, a command, and a place that is kept."""

from __future__ import annotations

import json
import re
import signal
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.notify.delivery import Notifier
from tests.processes.fleet import FLEETGATE, Fleet
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes


class Hook:
    """A webhook receiver; every second message is refused, if it is told to."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.asked = 0
        self.flaky = False
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.asked += 1
                refused = hook.flaky and hook.asked % 2 == 1
                if not refused:
                    hook.got.append(json.loads(body))
                self.send_response(500 if refused else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook-secret"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def kinds(self) -> list[str]:
        return [message["event"] for message in self.got]


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()


class Mail(socketserver.StreamRequestHandler):
    """As much SMTP as it takes to be handed a mail."""

    got: ClassVar[list[bytes]] = []

    def handle(self) -> None:
        self._say("220 here")
        while line := self.rfile.readline():
            word = line.strip().upper()[:4]
            if word == b"DATA":
                self._say("354 go on")
                mail = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    mail += part
                self.got.append(mail)
            self._say("221 bye" if word == b"QUIT" else "250 good")
            if word == b"QUIT":
                return

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


def configured(fleet: Fleet, *targets: str) -> None:
    fleet.configure("[agents]\nhost = 3\n" + "".join(f"[[notify]]\n{target}\n" for target in targets))


def test_t1_a_flaky_webhook_gets_every_message_once_and_in_order(fleet: Fleet, hook: Hook):
    hook.flaky = True
    configured(fleet, f'url = "{hook.url}"\nevents = ["failed", "login", "recovered"]')
    jobs = Jobs(fleet)
    teller = fleet.start([*FLEETGATE, "notify", "run"])
    fleet.until(lambda: (fleet.home / "notify.json").exists())
    bad = jobs.quickly("sh", "-c", "exit 3", retries=0, name="nightly")
    jobs.worker(1)
    jobs.ended(bad)
    fleet.until(lambda: hook.kinds == ["failed"], 20, "a message, after it was refused once")
    assert hook.asked == 2
    assert "nightly" in hook.got[0]["text"]
    assert hook.got[0]["detail"]["exit_code"] == 3
    assert "hook-secret" not in teller.err
    assert "answered 500 (will retry)" in teller.err


def test_t1_events_without_a_sender_are_delivered_later_and_each_once(fleet: Fleet, hook: Hook):
    configured(fleet, f'name = "team"\nurl = "{hook.url}"')
    gate = fleet.gate
    gate.decide([cmd.SetRule(Rule("requests", "umans", cap=4, on_429="step"))])
    first = Notifier(gate, print)
    assert first.take_lock()
    assert not Notifier(gate, print).take_lock(), "one process at a time"
    first.open()
    gate.decide([cmd.Report(kind="requests", target="umans")])
    while first.step(1000.0):
        pass
    assert hook.kinds == ["auto_reduced"]
    gate.decide([cmd.Report(kind="requests", target="umans")])
    second = Notifier(gate, print)
    second.open()
    second.step(1001.0)
    second.step(1002.0)
    assert hook.kinds == ["auto_reduced", "auto_reduced"]
    assert "auto-reduced to 2" in hook.got[1]["text"]


def test_t1_a_worker_sends_messages_until_it_stops(fleet: Fleet, hook: Hook):
    configured(fleet, f'url = "{hook.url}"\nevents = ["started", "succeeded"]')
    jobs = Jobs(fleet)
    worker = jobs.worker(1)
    fleet.until(lambda: (fleet.home / "notify.json").exists())
    job = jobs.quickly("true")
    jobs.ended(job)
    fleet.until(lambda: hook.kinds == ["started", "succeeded"], 20, f"two messages, not {hook.kinds}")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    fleet.until(lambda: not fleet.processes(), what="no process is left")


def test_t1_notify_test_tries_every_way(fleet: Fleet, hook: Hook):
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port, said = server.server_address[1], fleet.folder / "said"
    try:
        configured(
            fleet,
            f'name = "hook"\nurl = "{hook.url}"',
            f'name = "mail"\nurl = "mailto://127.0.0.1:{port}?from=me@example.org&to=you@example.org&mode=insecure"',
            f'name = "command"\ncommand = ["sh", "-c", "cat >{said}; echo $FLEETGATE_TEXT >>{said}"]',
            'name = "broken"\nurl_env = "NOT_THERE"',
        )
        run = fleet.start([*FLEETGATE, "notify", "test"])
        assert run.wait() == 69, run
    finally:
        server.shutdown()
        server.server_close()
    assert [line.split(":")[0] for line in run.out.splitlines()] == ["hook", "mail", "command"]
    assert "broken: $NOT_THERE is not set" in run.err
    assert hook.kinds == ["test"]
    assert b"Test message from Fleetgate" in Mail.got[0]
    assert "Test message from Fleetgate on" in said.read_text()
    one = fleet.start([*FLEETGATE, "notify", "test", "hook"])
    assert one.wait() == 0
    bad = fleet.start([*FLEETGATE, "notify", "test", "unknown"])
    assert bad.wait() == 64
    assert "valid are hook, mail, command, broken" in bad.err


def test_t1_without_a_target_notify_says_how_to_add_one(fleet: Fleet):
    run = fleet.start([*FLEETGATE, "notify", "test"])
    assert run.wait() == 64
    assert "[[notify]]" in run.err


def test_notify_run_alone_tells_that_a_job_expired_and_jobs_lists_it(fleet: Fleet, hook: Hook):
    configured(fleet, f'url = "{hook.url}"\nevents = ["queued", "expired"]')
    jobs = Jobs(fleet)
    fleet.start([*FLEETGATE, "notify", "run"])
    fleet.until(lambda: (fleet.home / "notify.json").exists())
    job = jobs.submit("--expires", "1s", "--name", "nightly", "--", "true")
    fleet.until(lambda: hook.kinds == ["queued", "expired"], what=f"both were told, not {hook.kinds}")
    assert "nightly" in hook.got[0]["text"]
    (listed,) = json.loads(jobs.cli("jobs", "--json").out)["jobs"]
    assert (listed["id"], listed["state"]) == (job, "expired")


def test_an_expired_job_is_listed_before_any_worker_has_recorded_its_end(fleet: Fleet):
    jobs = Jobs(fleet)
    job = jobs.submit("--expires", "1s", "--", "true")

    def expired() -> bool:
        (listed,) = json.loads(jobs.cli("jobs", "--json").out)["jobs"]
        return bool(listed["state"] == "expired")

    fleet.until(expired, what="the job expired, and no worker was running")
    # The time is the job's in the queue: longer than a second, where it took longer until a process looked.
    assert re.search(r"expired after [1-9][0-9]*s\b", jobs.cli("jobs").out)
    assert "expired" in jobs.cli("show", job).out


def test_the_first_messages_of_a_first_worker_are_told(fleet: Fleet, hook: Hook):
    configured(fleet, f'url = "{hook.url}"\nevents = ["started", "failed"]')
    jobs = Jobs(fleet)
    for _ in range(3):
        jobs.quickly("false", retries=0)
    jobs.worker(3)
    fleet.until(lambda: sorted(hook.kinds) == ["failed"] * 3 + ["started"] * 3, what=f"all of them, not {hook.kinds}")


def test_a_running_worker_follows_a_new_target_and_a_changed_one(fleet: Fleet, hook: Hook):
    fleet.configure("[agents]\nhost = 3\n")
    jobs = Jobs(fleet)
    worker = jobs.worker(1)
    jobs.ended(jobs.quickly("true"))
    assert not (fleet.home / "notify.json").exists()
    configured(fleet, f'name = "team"\nurl = "{hook.url}"\nevents = ["succeeded"]')
    fleet.until(lambda: (fleet.home / "notify.json").exists(), what="it was seen")
    jobs.ended(jobs.quickly("true"))
    fleet.until(lambda: hook.kinds == ["succeeded"], what="told from then on, and nothing of before")
    fleet.config.write_text("this is not TOML")
    fleet.until(lambda: "going on as before" in worker.err, what="a bad file is told")
    configured(fleet, f'name = "team"\nurl = "{hook.url}"\nevents = ["failed"]')

    def told_of_a_failure() -> bool:
        jobs.ended(jobs.quickly("false", retries=0))
        return "failed" in hook.kinds

    fleet.until(told_of_a_failure, what="what it says now is told")
    assert worker.code is None
