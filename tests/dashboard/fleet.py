"""A fleet as one meets it on a busy afternoon, for screenshots: several pools, one paused, one reduced after rate
limits, backoffs, a dozen leases and thirty in line. Nothing runs: its holders are processes of other machines."""

from __future__ import annotations

from headgate.core import commands as cmd
from headgate.core.records import Rule
from tests.dashboard.service import Server

OPUS, SONNET, GPT = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6", "openai/gpt-5"
CODER = "umans/coder"

RULES = [
    Rule("agents", "anthropic/claude-opus-*", cap=4, name="opus"),
    Rule("agents", "anthropic/claude-sonnet-*", cap=24, name="sonnet"),
    Rule("agents", "openai", cap=6),
    Rule("agents", "host", cap=16),
    Rule("requests", "umans", cap=8, cooldown_ms=350, on_429="step"),
    Rule("requests", "gemini", cap=12, cooldown_ms=350),
]

RUNNING = [
    (OPUS, "agents", "webshop", "opencode run 'Migrate the checkout to the new tax service'", "atlas", 1820),
    (OPUS, "agents", "webshop", "claude -p 'Find out why the nightly import doubles orders'", "atlas", 1311),
    (OPUS, "agents", "ledger", "opencode run 'Replace the rounding in invoices by exact decimals'", "borealis", 960),
    (OPUS, "agents", "infra", "claude -p 'Write the runbook for the database failover'", "borealis", 402),
    (SONNET, "agents", "webshop", "opencode run 'Add tests for the coupon rules'", "atlas", 640),
    (SONNET, "agents", "ledger", "aider --message 'Rename account to ledger account everywhere'", "cygnus", 515),
    (SONNET, "agents", "docs", "claude -p 'Rewrite the getting started page for Windows'", "cygnus", 88),
    (GPT, "agents", "infra", "codex exec 'Upgrade the base images and fix what breaks'", "atlas", 245),
    (GPT, "agents", "search", "codex exec 'Profile the indexer and remove the slowest query'", "borealis", 61),
    (CODER, "requests", "search", "nightly-eval/run.py --suite retrieval", "cygnus", 12),
    (CODER, "requests", "search", "nightly-eval/run.py --suite ranking", "cygnus", 7),
    (CODER, "requests", "docs", "translate.py docs/de", "atlas", 4),
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


def set_up(server: Server) -> None:
    server.tell(*(cmd.SetRule(rule) for rule in RULES))
    number = 0
    for model, kind, project, command, host, _ in RUNNING:
        number += 1
        server.ask(model, command, kind=kind, project=project, holder=holder(host, number))
    for _ in range(6):
        for model, kind, project, command, host, priority in WAITING:
            number += 1
            server.ask(
                model,
                command if number < 18 else f"{command.split(' ')[0]} run 'Task {4200 + number} of the {project} board'",
                kind=kind,
                project=project,
                holder=holder(host, number),
                priority=priority,
            )


def trouble(server: Server) -> None:
    """What goes wrong in an afternoon."""
    server.http("POST", "/v1/pause", target="gemini", kind="requests", for_s=2400)
    for _ in range(2):
        server.http("POST", "/v1/report", target="umans", kind="requests", retry_after_s=1)
    server.http("PUT", "/v1/backoffs", key="openai/gpt-5-codex", reason="rate_limited", for_s=840)
    server.http("PUT", "/v1/backoffs", key="anthropic@spare", reason="auth", for_s=3120)
    (ident,) = server.ask("openrouter/meta/llama-4", "nightly-eval/run.py --suite tools")
    server.release(ident, outcome="overloaded", evidence="HTTP 529 overloaded_error: the model is overloaded")
