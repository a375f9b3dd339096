"""`--service` with a server that is no service, or a hostile one: a sentence, no traceback, no control characters."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fleetgate.cli.service.over_http import COMMANDS

HOSTILE = "\x1b]0;taken\x07\x9b31m\u202e"
ARGUMENTS = {
    "select": "-m a/b",
    "capacity": "-m a/b",
    "submit": "-m a/b -- true",
    "report": "a/b --rate-limited",
    "drain": "h",
    "pause": "a",
    "resume": "a",
    "cap set": "a 3",
    "cap rm": "a",
    "cap reset": "a",
    "budget set": "project:web usd 5 --per day",
    "budget rm": "'project:web usd/day'",
    "budget unset": "'project:web usd/day'",
    "budget reset": "'project:web usd/day'",
    "budget add": "'project:web usd/day' 5",
    "backoff set": "a 5m",
    "backoff clear": "a",
    **dict.fromkeys(("show", "logs", "cancel", "stop", "bump", "retry", "approve"), "x"),
}
NAMES = [name for names in COMMANDS.values() for name in names.split(", ")]
ANSWERS = {
    "an empty object": (200, {}),
    "other types": (200, dict.fromkeys(("leases", "tickets", "jobs", "pools", "caps", "rows", "budgets"), 7)),
    "hostile rows": (200, {name: [{"id": HOSTILE, "project": HOSTILE}] for name in ("leases", "tickets", "jobs")}),
    "a hostile error": (400, {"error": f"bad {HOSTILE}"}),
}


# One process for each command, since its function is replaced for good; the first part of a path names the answer.
CALLS = """
import json, sys
from fleetgate.cli.main import invoke
url, names, *command = sys.argv[1:]
codes = {each: invoke(["--service", f"{url}/{each.replace(' ', '-')}", *command]) for each in json.loads(names)}
print()
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    by_path = {name.replace(" ", "-"): answer for name, answer in ANSWERS.items()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, answer = by_path[self.path.split("/")[1]]
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("name", NAMES)
def test_h2_a_command_at_a_server_that_is_no_service_ends_with_a_sentence(url: str, name: str) -> None:
    argv = [sys.executable, "-c", CALLS, url, json.dumps(list(ANSWERS))]
    done = subprocess.run(
        [*argv, *shlex.split(f"{name} {ARGUMENTS.get(name, '')}")],
        env={**os.environ, "FLEETGATE_KEY": "fgk_" + "a" * 43},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert not set(said) & set("\x1b\x07\x9b\u202e")
    assert "Traceback" not in said
    codes = json.loads(done.stdout.splitlines()[-1])
    assert codes.pop("a hostile error") == 64, said
    assert set(codes.values()) <= {0, 69, 75}, said
    assert (69 in codes.values()) == ("does not answer as this version needs" in done.stderr)
