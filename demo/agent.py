"""A simulated coding agent, run as a real process: it thinks, calls the model, thinks, calls again, and is done.

`python demo/agent.py --url URL --model M --calls 3 --think 0.2 --record FILE`. Like real agents it retries a refused
call a few times, with growing pauses, then gives up with an error on stderr and exit 1. It imports nothing but the
standard library, so it starts as fast as Python does and in any folder.

The rule: unless it is killed with SIGKILL, its record file has one line for its start and one for its end.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import sys
import time
from types import FrameType
from typing import NamedTuple, NoReturn

TRIED_AGAIN = frozenset({429, 500, 502, 503, 529})
LONGEST_PAUSE_S = 30.0
TIMEOUT_S = 60.0


class Api(NamedTuple):
    """How a provider is called: path, and what a whole stream ends with."""

    path: str
    last_words: bytes


APIS = {
    "anthropic": Api("/v1/messages", b'"message_stop"'),
    "openai": Api("/v1/chat/completions", b"[DONE]"),
    "gemini": Api("/v1beta/models/{model}:streamGenerateContent?alt=sse", b'"STOP"'),
}


class GaveUp(Exception):
    """The agent's own failure; its text is what a person finds on stderr."""


class Terminated(SystemExit):
    """A signal asked the agent to end."""


class Agent:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.refused = 0
        self.made = 0
        self._random = random.Random(options.name)

    def run(self) -> None:
        for number in range(1, self.options.calls + 1):
            time.sleep(self.options.think * self._random.uniform(1.0, 1.3))
            self._call()
            self.made += 1
            print(f"call {number} of {self.options.calls} done", flush=True)

    def _call(self) -> None:
        """One model call, tried again while the provider says it is a matter of time."""
        tries = self.options.retries + 1
        status, sentence = 0, ""
        for attempt in range(tries):
            status, sentence, retry_after_s = self._ask()
            if status == 200:
                return
            self.refused += status == 429
            if status not in TRIED_AGAIN:
                raise GaveUp(f"unexpected status: {_status_line(status)}: {sentence}")
            if attempt < tries - 1:
                time.sleep(min(retry_after_s or self.options.backoff * 2**attempt, LONGEST_PAUSE_S))
        raise GaveUp(f"{sentence}\nERROR: exceeded retry limit, last status: {_status_line(status)}")

    def _ask(self) -> tuple[int, str, float | None]:
        """Status, the error's sentence, and how long the provider asks to wait."""
        host, _, prefix = self.options.url.partition("://")[2].partition("/")
        api = APIS[self.options.api]
        path = api.path.format(model=self.options.model)
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        try:
            connection.request("POST", f"/{prefix}".rstrip("/") + path, self._body(), _fields())
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise GaveUp(f"connection error: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if response.status == 200 and api.last_words not in body:
            raise GaveUp("the stream ended before the answer was whole")
        return response.status, _sentence(body), _seconds(response.headers.get("retry-after"))

    def _body(self) -> bytes:
        prompt = "Fix the failing test."
        if self.options.api == "gemini":
            return json.dumps({"contents": [{"role": "user", "parts": [{"text": prompt}]}]}).encode()
        messages = [{"role": "user", "content": prompt}]
        return json.dumps(
            {"model": self.options.model, "max_tokens": 64, "stream": True, "messages": messages}
        ).encode()


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _end)
    agent = Agent(options)
    outcome = "failed"
    try:
        _record(options, "start", {})
        agent.run()
        outcome = "ok"
    except GaveUp as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        outcome = "interrupted"
        return 128 + signal.SIGINT
    except Terminated:
        outcome = "ended"
        raise
    finally:
        _record(options, "end", {"outcome": outcome, "calls": agent.made, "refused": agent.refused})
    return 0


def _record(options: argparse.Namespace, event: str, more: dict[str, object]) -> None:
    if options.record:
        about = {"event": event, "agent": options.name, "pid": os.getpid(), "at_s": time.time()}
        append_record(options.record, {**about, **more})


def append_record(path: str, record: dict[str, object]) -> None:
    """Add one line with one write: lines of several agents never mix (see demo/records.py)."""
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def _end(number: int, _: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second one must not break off the record
    raise Terminated(128 + number)


def _fields() -> dict[str, str]:
    return {"Content-Type": "application/json", "Connection": "close", "User-Agent": "fleetgate-demo-agent"}


def _status_line(status: int) -> str:
    return f"{status} {http.client.responses.get(status, 'Overloaded' if status == 529 else '')}".strip()


def _sentence(body: bytes) -> str:
    """What the provider's error says, in any of the shapes."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace").strip()


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python demo/agent.py", description="A simulated coding agent.")
    add = parser.add_argument
    add("--url", required=True, type=_url, help="the provider's address, such as http://127.0.0.1:8000")
    add("--model", default="coder")
    add("--api", choices=sorted(APIS), default="anthropic")
    add("--calls", type=int, default=3, metavar="N", help="model calls, one after the other (default 3)")
    add("--think", type=float, default=0.2, metavar="S", help="a pause before each call, up to a third longer")
    add("--retries", type=int, default=3, metavar="N", help="more tries of a refused call (default 3)")
    add("--backoff", type=float, default=0.2, metavar="S", help="before the first of them; doubles each time")
    add("--record", default="", metavar="FILE", help="append a line at the start and at the end")
    add("--name", default=f"agent-{os.getpid()}", help="in the record")
    return parser


def _url(text: str) -> str:
    if not text.startswith("http://") or not text[7:].partition("/")[0]:
        raise argparse.ArgumentTypeError(f"an address is http://HOST:PORT, not {text}")
    return text.rstrip("/")


if __name__ == "__main__":
    raise SystemExit(main())
