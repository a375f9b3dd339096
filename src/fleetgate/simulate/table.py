"""The comparison as a table: a row for each scenario, a column for each policy."""

from __future__ import annotations

from fleetgate.simulate.result import Mean


def compared(means: list[Mean]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: `utilisation % / number of 429s`."""
    policies = list(dict.fromkeys(each.policy for each in means))
    scenarios = list(dict.fromkeys(each.scenario for each in means))
    cells = {(each.scenario, each.policy): _cell(each) for each in means}
    rows = [[scenario, *(cells.get((scenario, policy), "") for policy in policies)] for scenario in scenarios]
    return ["", *policies], rows


def _cell(each: Mean) -> str:
    return f"{each.utilisation:.1f} / {_number(each.refusals)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def waits(means: list[Mean]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: how long agents waited, the part of the work that each project got, and the tokens served."""
    has_tokens = any(each.tokens_per_min for each in means)
    rows = []
    for each in means:
        shares = ", ".join(f"{name} {share:.0f} %" for name, share in each.shares.items() if len(each.shares) > 1)
        longest = ", ".join(f"{name} {wait:.0f} s" for name, wait in each.waits_max_s.items())
        longest = longest if len(each.waits_max_s) > 1 else f"{each.wait_max_s:.0f} s"
        waits = f"{each.wait_p50_s:.0f} / {each.wait_p99_s:.0f} s"
        row = [each.scenario, each.policy, waits, longest, f"{each.overtaken_s:.0f} s", shares]
        rows.append([*row, f"{each.tokens_per_min:,.0f}"] if has_tokens else row)
    head = ["", "policy", "wait p50 / p99", "longest", "overtaken by", "shares"]
    return [*head, "tokens/min"] if has_tokens else head, rows


def aligned(head: list[str], rows: list[list[str]]) -> str:
    """For a terminal."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join(line.rstrip() for line in lines)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
