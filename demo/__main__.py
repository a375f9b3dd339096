"""The demo (`make demo`): a dozen agents and a provider that takes three at once, without Fleetgate and then with it.

No network but loopback, real processes, under 40 s. The rule: it is also a smoke test. If any agent fails with
Fleetgate, or more run at once than the cap allows, or a lease is left over, it reports that and exits 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
from msgspec import Struct

from demo.fleet import Fleet, FleetError, Progress, ProviderProcess
from demo.view import View
from fleetgate.gate.python_command import python_command

AGENTS = 12
LIMIT = 3
MODEL = "demo/coder"

# A call takes half a second and still counts a quarter of a second later. An agent thinks for longer than that before
# each call, its first included, so that three agents never make four calls.
PROVIDER = ("--limit", str(LIMIT), "--lag", "0.25", "--latency", "0.3", "--chunks", "4", "--chunk-delay", "0.05")
AGENT = ("--model", "coder", "--calls", "3", "--think", "0.5", "--retries", "3", "--backoff", "0.2")

# The built-in host cap is 3 as well; raised, so that the demo shows the model's cap.
CONFIG = f"""\
[agents]
host = 50
"{MODEL}" = {LIMIT}
"""

POLL_S = 0.1
LONGEST_S = 60.0


class Stopped(BaseException):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(argv: list[str] | None = None) -> int:
    only = _parser().parse_args(argv).only
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    view = View()
    try:
        return _play_all(view, only)
    except Stopped as stopped:
        view.say("\nStopped; every process of the demo has ended.")
        return 128 + stopped.number
    except FleetError as error:
        view.say(f"The demo failed: {error}.", "bold red")
        return 1


def _play_all(view: View, only: str) -> int:
    view.say(f"{AGENTS} coding agents share one provider account. It takes {LIMIT} calls at once, refuses")
    view.say("the next with a 429, and does not publish its limit.\n")
    without = with_fleetgate = None
    problems: list[str] = []
    if only in ("", "without"):
        view.say("1. Without Fleetgate: all start at once, and each retries as agents do", "bold")
        without = _play(view, wrapped=False)
        view.say(f"{without.failure}\n" if without.failure else "", "dim")
    if only in ("", "with"):
        view.say(f"2. With Fleetgate: fleetgate run -m {MODEL} -- AGENT, and a cap of {LIMIT}", "bold")
        with_fleetgate = _play(view, wrapped=True)
        problems = _problems(with_fleetgate)
        view.say("")
    halves = (("without", without), ("with", with_fleetgate))
    view.compare([(f"{name} Fleetgate", half.end) for name, half in halves if half])
    for problem in problems:
        view.say(problem, "bold red")
    if not problems:
        _say_next(view, without)
    return 1 if problems else 0


class Half(Struct, frozen=True):
    """How one half of the story ended; `failure` is what the first failed agent said, `left` what leases are left."""

    end: Progress
    failure: str
    left: str


def _play(view: View, wrapped: bool) -> Half:
    with (
        tempfile.TemporaryDirectory(prefix="fleetgate-demo-") as folder,
        ProviderProcess(*PROVIDER) as provider,
        Fleet(Path(folder), provider, env := _environment(Path(folder))) as fleet,
        view.following() as show,
    ):
        for number in range(1, AGENTS + 1):
            agent = f"agent-{number:02d}"
            fleet.start(agent, _command(agent, provider.url, fleet.record, wrapped))
            show(fleet.progress())
        while not (progress := fleet.progress()).over and progress.elapsed_s < LONGEST_S:
            show(progress)
            time.sleep(POLL_S)
        show(progress)
        if not progress.over:
            states = f"{progress.number('running')} agents are still running and {progress.number('waiting')} waiting"
            raise FleetError(f"after {LONGEST_S:g} s {states}")
        return Half(progress, fleet.first_failure(), _leases_left(env) if wrapped else "")


def _command(agent: str, url: str, record: Path, wrapped: bool) -> list[str]:
    script = Path(__file__).with_name("agent.py")
    own = [sys.executable, str(script), "--url", url, "--record", str(record), "--name", agent, *AGENT]
    return python_command("fleetgate", "run", "-m", MODEL, "--quiet", "--", *own) if wrapped else own


def _environment(home: Path) -> dict[str, str]:
    """A home and a config of its own, without the user's settings."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("FLEETGATE_", "AIDEVOPS_"))}
    config = home / "config.toml"
    config.write_text(CONFIG)
    return {**env, "FLEETGATE_HOME": str(home / "state"), "FLEETGATE_CONFIG": str(config)}


def _leases_left(env: dict[str, str]) -> str:
    """What is wrong with the leases after the last agent has ended; nothing when there is none left."""
    ps = subprocess.run(python_command("fleetgate", "ps", "--json"), env=env, capture_output=True, timeout=30)
    if ps.returncode:
        said = ps.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        return f"fleetgate ps --json failed (exit {ps.returncode}): {said[-1]}"
    leases = msgspec.json.decode(ps.stdout)["leases"]
    return f"{len(leases)} leases are left although every agent has ended: {leases}" if leases else ""


def _problems(half: Half) -> list[str]:
    end, problems = half.end, []
    if end.number("failed"):
        problems.append(f"Failed: with Fleetgate {end.number('failed')} of {AGENTS} agents failed. {half.failure}")
    if end.most_at_once > LIMIT:
        problems.append(f"Failed: with Fleetgate {end.most_at_once} agents ran at once, and the cap is {LIMIT}.")
    if half.left and not problems:
        problems.append(f"Failed: {half.left}.")
    return problems


def _say_next(view: View, without: Half | None) -> None:
    failed = without.end.number("failed") if without else 0
    if failed:
        view.say(f"Without it the work of the {failed} agents that gave up is still to be done.\n")
    view.say('Put it before your own agents: fleetgate run -m MODEL -- claude -p "..."')
    view.say("While they run, fleetgate queue shows which are waiting, and why.")


def _end(number: int, _: FrameType | None) -> NoReturn:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the cleanup
    raise Stopped(number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("without", "with"), default="", help="only one half of the story")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
