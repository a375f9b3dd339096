"""A fleet as one meets it on a busy afternoon, for screenshots: several pools, one paused, one reduced after rate
limits, backoffs, a dozen leases and thirty in the queue. Nothing runs: its holders are processes of other machines."""

from __future__ import annotations

from collections.abc import Iterator

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.gate.liveness.process_identity import site_of
from fleetgate.log.host_beats import GAP_MS
from tests.dashboard.service import Server

OPUS, SONNET, GPT = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6", "openai/gpt-5"
CODER = "umans/coder"

RULES = [
    Rule("agents", "anthropic/claude-opus-*", cap=4, name="opus"),
    Rule("agents", "anthropic/claude-sonnet-*", cap=24, name="sonnet"),
    Rule("agents", "openai", cap=6),
    Rule("agents", "host", cap=16),
    Rule("requests", "umans", cap=8, cooldown_ms=350, on_429="step"),
    Rule("requests", "gemini", cap=12, cooldown_ms=350, on_429="step"),
]

RUNNING = [
    (OPUS, "agents", "webshop", "opencode run 'Migrate the checkout to the new tax service'", "atlas"),
    (OPUS, "agents", "webshop", "claude -p 'Find out why the nightly import doubles orders'", "atlas"),
    (OPUS, "agents", "ledger", "opencode run 'Replace the rounding in invoices by exact decimals'", "borealis"),
    (OPUS, "agents", "infra", "claude -p 'Write the runbook for the database failover'", "borealis"),
    (SONNET, "agents", "webshop", "opencode run 'Add tests for the coupon rules'", "atlas"),
    (SONNET, "agents", "ledger", "aider --message 'Rename account to ledger account everywhere'", "cygnus"),
    (SONNET, "agents", "docs", "claude -p 'Rewrite the getting started page for Windows'", "cygnus"),
    (GPT, "agents", "infra", "codex exec 'Upgrade the base images and fix what breaks'", "atlas"),
    (GPT, "agents", "search", "codex exec 'Profile the indexer and remove the slowest query'", "borealis"),
    (CODER, "requests", "search", "nightly-eval/run.py --suite retrieval", "cygnus"),
    (CODER, "requests", "search", "nightly-eval/run.py --suite ranking", "cygnus"),
    (CODER, "requests", "docs", "translate.py docs/de", "atlas"),
]

WAITING = [
    (OPUS, "agents", "ledger", "opencode run 'Audit every place that writes to the balance table'", "atlas", 5),
    (OPUS, "agents", "webshop", "claude -p 'Design the partial refund flow with the finance team notes'", "cygnus", 0),
    (OPUS, "agents", "infra", "opencode run 'Move the secrets of staging to the new vault'", "borealis", 0),
    (CODER, "requests", "search", "nightly-eval/run.py --suite multilingual", "cygnus", 0),
    (OPUS, "agents", "docs", "claude -p 'Explain the permission model with three examples'", "atlas", -10),
]


def holder(host: str, number: int) -> str:
    """A process of another machine, which nobody here can judge."""
    return f"{host}|boot|ns|{4100 + number * 37}|{number}"


def beat(server: Server) -> None:
    """The machines of the fleet are alive; without a beat they count as gone after 45 s."""
    for host in {each[4] for each in RUNNING}:
        server.gate.log.beat(site_of(holder(host, 0)), GAP_MS)


def set_up(server: Server) -> None:
    for _ in arrivals(server):
        pass


def arrivals(server: Server) -> Iterator[None]:
    """The fleet arrives, one agent after the other."""
    beat(server)
    server.tell(*(cmd.SetRule(rule) for rule in RULES))
    number = 0
    for model, kind, project, command, host in RUNNING:
        number += 1
        server.ask(model, command, kind=kind, project=project, holder=holder(host, number))
        yield
    for turn in range(6):
        for model, kind, project, command, host, priority in WAITING:
            number += 1
            later = f"{command.split(' ')[0]} --task {4200 + number} --board {project}"
            server.ask(
                model,
                later if turn else command,
                kind=kind,
                project=project,
                holder=holder(host, number),
                priority=priority,
            )
            yield


def trouble(server: Server) -> None:
    """What goes wrong in an afternoon."""
    server.http("POST", "/v1/pause", target="gemini", kind="requests", for_s=2400)
    for _ in range(2):
        server.http("POST", "/v1/report", target="umans", kind="requests", retry_after_s=1)
    server.http("PUT", "/v1/backoffs", key="openai/gpt-5-codex", reason="rate_limited", for_s=840)
    server.http("PUT", "/v1/backoffs", key="anthropic@spare", reason="auth", for_s=3120)
    (ident,) = server.ask("openrouter/meta/llama-4", "nightly-eval/run.py --suite tools")
    server.release(ident, outcome="overloaded", evidence="HTTP 529 overloaded_error: the model is overloaded")
