"""`--service` with a server that is no service, or a hostile one: a sentence, no traceback, no control characters."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fleetgate.cli.main import invoke
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


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, answer = made.answer  # type: ignore[attr-defined]
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

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", NAMES)
def test_h2_a_command_at_a_server_that_is_no_service_ends_with_a_sentence(
    server: ThreadingHTTPServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    answer: str,
) -> None:
    server.answer = ANSWERS[answer]  # type: ignore[attr-defined]
    monkeypatch.setenv("FLEETGATE_KEY", "fgk_" + "a" * 43)
    monkeypatch.delenv("FLEETGATE_SERVICE", raising=False)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    code = invoke(["--service", url, *shlex.split(f"{name} {ARGUMENTS.get(name, '')}")])
    said = "".join(capsys.readouterr())
    assert not set(said) & set(HOSTILE[:1] + "\x07\x9b\u202e")
    assert "Traceback" not in said
    if ANSWERS[answer][0] == 400:
        assert (code, "bad" in said) == (64, True)
    elif code:
        assert code == 69, said
        assert f"the service at {url} does not answer as this version needs" in said
