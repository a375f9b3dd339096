"""Usage for the dashboard: hours of it beside the log, runs that end with it, and budgets."""

from __future__ import annotations

from collections.abc import Sequence

from fleetgate.core import commands as cmd
from fleetgate.core.budgets.usage_sums import HOUR_MS
from fleetgate.core.usage import ESTIMATE, RECORD, RESPONSE, Usage, UsageRow
from fleetgate.log import open_log
from tests.dashboard.fleet import GPT, OPUS, SONNET
from tests.dashboard.service import Server
from tests.usage_hours import row, write_hours

MODELS = (OPUS, SONNET, GPT, "umans/coder")
PRICES = {OPUS: 41_000, SONNET: 9_000, GPT: 14_000}  # of a call, in millionths of a dollar; of others it is not known


def hours_ago(server: Server, models: Sequence[str] = MODELS, hours: Sequence[int] = (2, 5, 26, 51)) -> None:
    """Usage of these models so many hours ago, in the projects web and docs."""
    log = open_log(f"sqlite://{server.home}")
    try:
        current = log.now() // HOUR_MS
        spent = {current - ago: [_spent(model, place, ago) for place, model in enumerate(models)] for ago in hours}
        write_hours(log, spent)
    finally:
        log.close()


def _spent(model: str, place: int, ago: int) -> UsageRow:
    calls = 3 + (place * 7 + ago * 5) % 40
    price = PRICES.get(model)
    return row(
        calls,
        ("web", "docs", "ledger")[(place + ago) % 3],
        model,
        cost=None if price is None else calls * price,
        source=ESTIMATE if (place + ago) % 11 == 4 else RESPONSE,
        host=("atlas", "borealis")[ago % 2],
        input=calls * 2_100,
        cache_read=calls * 9_000,
        output=calls * 310,
    )


def run_ended(server: Server, model: str, project: str, *, calls: int = 4, cost: int | None = 250_000) -> str:
    """A run that ends with usage from its agent's record: it counts in the current hour."""
    (ident,) = server.ask(model, "claude -p 'Fix it'", kind="agents", project=project)
    server.release(ident, usage=Usage(calls, 1_200, 0, 0, 340, cost, RECORD))
    return ident


def week(server: Server) -> None:
    """A week of usage, budgets in every state, and running agents that have used something; for pictures."""
    work = [ago for ago in range(1, 160) if ago % 24 not in range(9, 17)]
    hours_ago(server, (*MODELS, "gemini/flash", "openrouter/meta/llama-4"), work)
    for number in range(6):
        run_ended(server, MODELS[number % 3], "webshop", calls=4 + number, cost=250_000 * (1 + number % 3))
    for selector, unit, amount, per in (
        ("project:webshop", "usd", 2, "day"),
        ("project:ledger", "usd", 20, "day"),
        ("project:docs", "usd", 5, "week"),
        ("anthropic", "usd", 200, "month"),
        ("anthropic/claude-opus-*", "input", 400_000, "1m"),
    ):
        server.http("POST", "/v1/budgets", selector=selector, unit=unit, amount=amount, per=per)
    for project, cost in (("webshop", 2_150_000), ("ledger", 17_300_000), ("docs", 1_100_000)):
        run_ended(server, "acme/small", project, calls=9, cost=cost)
    held = server.gate.read().leases
    for place, ident in enumerate(list(held)[:7]):
        used = Usage(3 + place, 11_000 * (1 + place), 60_000, 0, 2_100 * (1 + place), 120_000 * (1 + place), RESPONSE)
        server.tell(cmd.Settle(ident, used))
