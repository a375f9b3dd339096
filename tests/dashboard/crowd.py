"""Fleets of any size, for pictures and tests: so many pools, so many waiting requests, and trouble in some."""

from __future__ import annotations

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from tests.dashboard import fleet
from tests.dashboard.fleet import holder
from tests.dashboard.service import Server

PROVIDERS = ("anthropic", "openai", "gemini", "umans", "openrouter", "mistral")
ACCOUNTS = ("", "@work", "@spare")
MODELS = ("large", "small-2026-10-preview", "coder", "vision-with-a-rather-long-name")
TASKS = ("Fix the flaky checkout test", "Translate the handbook", "Review the migration", "Profile the indexer")
PROJECTS = ("webshop", "ledger", "docs", "infra", "search")


def rules(pools: int) -> list[Rule]:
    """The caps of so many pools, of several providers, accounts and models."""
    if pools <= len(fleet.RULES):
        return fleet.RULES[:pools]
    made = []
    for number in range(pools - 1):
        provider = PROVIDERS[number % len(PROVIDERS)]
        account = ACCOUNTS[number // len(PROVIDERS) % len(ACCOUNTS)]
        model = f"{MODELS[number % len(MODELS)]}-{number}"
        kind = "requests" if number % 3 else "agents"
        made.append(Rule(kind, f"{provider}{account}/{model}", cap=1 + number * 7 % 30, on_429="step"))
    return [*made, Rule("agents", "host", cap=400)]


def gather(server: Server, pools: int, waiting: int) -> None:
    """Set up so many pools, with something running in a third of them, and let so many requests wait."""
    fleet.beat(server)
    caps = rules(pools)
    server.tell(*(cmd.SetRule(rule) for rule in caps))
    models = [(rule.kind, rule.selector.replace("*", "4-6")) for rule in caps if "/" in rule.selector]
    if not models:  # no pool: requests wait for a model that is backed off
        server.http("PUT", "/v1/backoffs", key="openai/gpt-5", reason="rate_limited", for_s=900)
        models = [("agents", "openai/gpt-5")]
    number = 0
    hosts = ("atlas", "borealis", "cygnus")

    def ask(kind: str, model: str) -> None:
        nonlocal number
        number += 1
        command = f"claude -p '{TASKS[number % len(TASKS)]} (task {4000 + number})'"
        project = PROJECTS[number * 3 % len(PROJECTS)]
        server.ask(model, command, kind=kind, project=project, holder=holder(hosts[number % 3], number % 900))

    busy = models[::3]
    caps_of = {rule.selector.replace("*", "4-6"): rule.cap or 0 for rule in caps}
    if caps and waiting:
        for kind, model in busy:
            for _ in range(caps_of[model]):
                ask(kind, model)
    elif caps:
        for kind, model in busy:
            ask(kind, model)
    for turn in range(waiting):
        ask(*busy[turn % min(len(busy), 7)])
    if pools > len(fleet.RULES):
        for place in (4, 9, 20, 33, 41):
            server.http("POST", "/v1/report", target=caps[place].selector, kind=caps[place].kind, retry_after_s=1)
        server.http("POST", "/v1/pause", target=caps[7].selector, kind=caps[7].kind)
        server.http("PUT", "/v1/backoffs", key="anthropic@spare", reason="auth", for_s=3120)
