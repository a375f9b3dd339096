"""`fleetgate budget`: rates and budgets set at run time, which override the config file (rule V7).

The rule: a change is synced to disk before the command reports it.
"""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import entered_text, json_option, opened_gate, show_result, tell
from fleetgate.cli.completion_values import complete_budget, complete_budget_selector
from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.config.budget_rules import read_amount
from fleetgate.config.errors import BadValue
from fleetgate.config.value_types import ESTIMATES, WHEN_EMPTY
from fleetgate.core import commands as cmd
from fleetgate.core.budgets.rules import rule_key
from fleetgate.core.entities import BudgetRule
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import canonical
from fleetgate.core.state.state import State
from fleetgate.core.usage import UNITS
from fleetgate.core.views.budget_views import BudgetView, budget_views
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.budgets.listing import (
    budget_json,
    budgets_json,
    find_budget,
    find_rule,
    find_runtime_rule,
    read_budget,
    unset_json,
)
from fleetgate.present.budgets.text import amount_with_unit, exact_amount, rule_text
from fleetgate.present.log_time import LogTimes
from fleetgate.present.name_lookup import check_provider, entered
from fleetgate.present.text import span
from fleetgate.present.wall_time import parse_until_ms

_COLUMNS = (
    Column("BUDGET", least=16, name=True),
    Column(""),
    Column("USED", right=True),
    Column("RESERVED", right=True, spare=True),
    Column("LEFT", right=True),
    Column("OF", right=True),
    Column("RESETS"),
    Column("WAITING", right=True),
    Column("WHEN EMPTY", spare=True),
    Column("SOURCE", spare=True),
)
_BAR = 10


@click.group(short_help="Set, list, reset and extend rates and budgets.", no_args_is_help=True)
def command() -> None:
    """Set, list, reset and extend rates and budgets: how many calls, tokens or dollars may be used per period.

    Values set here override the config file for all processes.

    \b
    fleetgate budget set project usd 20 --per day
    fleetgate budget set 'anthropic/claude-opus-*' input 400k --per 1m
    fleetgate budget add 'project:web usd/day' 5 --until 18:00
    fleetgate budget unset 'project usd/day'
    fleetgate budget ls
    """


# Setting and removing.


@command.command("set", short_help="Set a rate or a budget.")
@click.argument("selector", shell_complete=complete_budget_selector)
@click.argument("unit", metavar="UNIT", shell_complete=lambda _c, _p, begun: [u for u in UNITS if u.startswith(begun)])
@click.argument("amount")
@click.option("--per", required=True, metavar="PERIOD", help="day, week, month, or a duration such as 1m or 5h.")
@click.option("--burst", metavar="AMOUNT", help="The most that a rate can save up. Default: what it allows per period.")
@click.option("--when-empty", type=click.Choice(WHEN_EMPTY), help="What happens when it is used up. Default: hold.")
@click.option(
    "--estimate", type=click.Choice(ESTIMATES), help="What a call reserves before it starts. Default: expected."
)
@json_option
def set_(
    selector: str,
    unit: str,
    amount: str,
    per: str,
    burst: str | None,
    when_empty: str | None,
    estimate: str | None,
    as_json: bool,
) -> None:
    """Set how much of UNIT the requests of a selector may use per period.

    SELECTOR is host, project (each project), project:NAME, key (each access key), key:NAME, provider, provider/model,
    or one of the last two with @account and * globs. UNIT is calls, input, output, tokens or usd. A period of up to 1h
    is a rate, which refills all the time. day, week and month begin at midnight in the config file's time_zone. A
    longer duration begins with the first use.

    --when-empty hold lets new requests wait, stop also stops running agents, fallback uses the next model, warn only
    reports. With --estimate max, a call reserves the most that it can use, and the budget is never exceeded.

    \b
    fleetgate budget set project usd 20 --per day --when-empty stop
    fleetgate budget set openai tokens 2M --per 1m --burst 500k

    Exit codes: 0; 64 when something is invalid (nothing is changed).
    """
    rule = read_budget(selector, unit, amount, per, burst=burst, when_empty=when_empty, estimate=estimate)
    gate = opened_gate()
    state = gate.read()
    if ":" not in rule.selector:
        check_provider(rule.selector, state, gate.settings)
    before = _in_force(state, rule)
    events = gate.one(cmd.SetBudget(rule), durable=True)
    moments = LogTimes(gate)
    views = [view for view in budget_views(gate.state, moments.now) if _is_of(view, rule)]
    if as_json:
        say_json({"budgets": [budget_json(view, moments) for view in views], "entered": entered(events)})
        return
    was = f", was {rule_text(before[0])} ({before[1]})" if before is not None else ""
    tell(f"{rule.selector}: {rule_text(rule)}{was}{entered_text(events)}")
    for view in views:
        if view.provider_amount is not None and view.provider_amount < view.amount:
            allowed = amount_with_unit(view.unit, view.provider_amount)
            tell(f"note: the provider reports {allowed} per {view.per}, which is less, and applies")
        if view.free <= 0:
            tell(f"{view.name}: used up, {_resets(view, moments)}")
    if not rule.per_ms and not state.file_digest:
        tell(
            f"note: without a config file, a {rule.per} begins at midnight UTC; time_zone in the config file changes it"
        )


def _in_force(state: State, rule: BudgetRule) -> tuple[BudgetRule, str] | None:
    return next((each for each in state.budget_rules.rules() if rule_key(each[0]) == rule_key(rule)), None)


def _is_of(view: BudgetView, rule: BudgetRule) -> bool:
    return (view.selector, view.unit, view.per) == (rule.selector, rule.unit, rule.per)


@command.command("rm", short_help="Remove a rate or a budget, even one of the config file.")
@click.argument("name", shell_complete=complete_budget)
@json_option
def rm(name: str, as_json: bool) -> None:
    """Remove a rate or a budget, even one of the config file. What was used of it is forgotten.

    NAME is as `fleetgate budget ls` shows it, or the selector, unit and period: `project usd/day`.

    \b
    fleetgate budget rm 'project usd/day'

    Exit codes: 0; 64 when there is no such budget.
    """
    gate = opened_gate()
    state = gate.read()
    rule = find_rule(state, name, gate.now())
    in_file = state.budget_rules.file.get((rule.selector, rule.unit, rule.per))
    events = gate.one(cmd.RemoveBudget(rule.selector, rule.unit, rule.per), durable=True)
    document = {"selector": rule.selector, "unit": rule.unit, "per": rule.per, "entered": entered(events)}
    lines = [f"{rule.selector}: no budget in {rule.unit} per {rule.per}, was {rule_text(rule)}{entered_text(events)}"]
    if in_file is not None:
        again = f"fleetgate budget unset '{_name(rule)}'"
        lines.append(f"this hides {rule_text(in_file)} from the file; `{again}` brings it back")
    show_result(as_json, document, *lines)


@command.command("unset", short_help="Use the config file's value again.")
@click.argument("name", shell_complete=complete_budget)
@json_option
def unset(name: str, as_json: bool) -> None:
    """Drop what was set or removed at run time: the config file's rate or budget applies again.

    Where the config file has none, there is no such budget any more. What was used of it stays used.

    \b
    fleetgate budget unset 'project usd/day'

    Exit codes: 0; 64 when nothing was set at run time for it.
    """
    gate = opened_gate()
    selector, unit, per = find_runtime_rule(gate.read(), name, gate.now())
    events = gate.one(cmd.UnsetBudget(selector, unit, per), durable=True)
    rule = gate.state.budget_rules.file.get((selector, unit, per))
    document = unset_json(gate.state, (selector, unit, per), entered(events))
    now = f"{rule_text(rule)}, from the file" if rule is not None else f"no budget in {unit} per {per}"
    show_result(as_json, document, f"{selector}: {now}{entered_text(events)}")


# What is used.


@command.command("reset", short_help="Count from zero again.")
@click.argument("name", shell_complete=complete_budget)
@json_option
def reset(name: str, as_json: bool) -> None:
    """Count a rate or budget from zero again: nothing of it is used, except what running calls have reserved.

    \b
    fleetgate budget reset 'project:web usd/day'

    Exit codes: 0; 64 when there is no such budget.
    """
    gate = opened_gate()
    view = find_budget(gate.read(), name, gate.now())
    events = gate.one(cmd.ResetBudget(view.name), durable=True)
    _show_now(gate, view.name, as_json, f"{view.name}: reset{entered_text(events)}", entered(events))


@command.command("add", short_help="Allow more for a while.")
@click.argument("name", shell_complete=complete_budget)
@click.argument("amount")
@click.option(
    "--until", metavar="TIME", help="A time such as 18:00, or a duration such as 2h. Default: until it resets."
)
@json_option
def add(name: str, amount: str, until: str | None, as_json: bool) -> None:
    """Allow more than a budget has: in its current period, or until a time. A rate has that much more once, now.

    \b
    fleetgate budget add 'project:web usd/day' 5
    fleetgate budget add 'project:web usd/day' 5 --until 18:00

    Exit codes: 0; 64 when there is no such budget, or the amount or time is invalid (nothing is changed).
    """
    gate = opened_gate()
    view = find_budget(gate.read(), name, gate.now())
    more = _amount(view, amount)
    if until is not None and view.rate:
        raise BadRequest(f"--until: {view.name} is a rate, which has this much more once; leave --until out")
    moment = 0 if until is None else parse_until_ms(until) - LogTimes(gate).offset_ms
    events = gate.one(cmd.AddBudget(view.name, more, moment), durable=True)
    text = f"{view.name}: {amount_with_unit(view.unit, more)} more{entered_text(events)}"
    _show_now(gate, view.name, as_json, text, entered(events))


def _amount(view: BudgetView, text: str) -> int:
    try:
        return read_amount(view.unit, text)
    except BadValue as error:
        raise BadRequest(str(error)) from error


def _show_now(gate: DirectGate, name: str, as_json: bool, text: str, count: int) -> None:
    """The result of a change, and how much is left."""
    moments = LogTimes(gate)
    view = find_budget(gate.state, name, moments.now)
    left = f"{exact_amount(view.unit, max(view.free, 0))} of {amount_with_unit(view.unit, view.amount)} left"
    show_result(as_json, {"budget": budget_json(view, moments), "entered": count}, f"{text}; {left}")


# Listing.


@command.command("ls", short_help="List rates and budgets, and what is left of them.")
@click.argument("name", required=False, shell_complete=complete_budget)
@json_option
def ls(name: str | None, as_json: bool) -> None:
    """List every rate and budget: what is used, reserved and left, and when it resets.

    Rates with the source `provider` are those that providers report in their responses. NAME filters by a part of the
    name.

    \b
    fleetgate budget ls
    fleetgate budget ls project:web
    fleetgate budget ls --json
    """
    with opened() as gate:
        state = current(gate)
        moments = LogTimes(gate)
        if as_json:
            shape = budgets_json(state, moments)
            shape.budgets = [each for each in shape.budgets if _is_listed(each.name, name)]
            say_json(shape)
            return
        views = [view for view in budget_views(state, moments.now) if _is_listed(view.name, name)]
        screen = Screen()
        if views:
            screen.table(_COLUMNS, [_row(screen, view, moments) for view in views])
        listed = {(view.selector, view.unit, view.per) for view in views}
        unused = [rule for rule, _ in state.budget_rules.rules() if rule_key(rule) not in listed]
        if unused and not name:
            screen.line(f"nothing was used yet of: {', '.join(_name(rule) for rule in unused)}")
        elif not views:
            screen.line(_none(name))
        screen.show()


def _is_listed(name: str, part: str | None) -> bool:
    return not part or canonical(part) in name


def _name(rule: BudgetRule) -> str:
    return f"{rule.selector} {rule.unit}/{rule.per}"


def _none(name: str | None) -> str:
    if name:
        return f"no budget whose name contains {name}"
    return "no budgets; set one, for example: fleetgate budget set project usd 20 --per day"


def _row(screen: Screen, view: BudgetView, moments: LogTimes) -> list[str | Cell]:
    whole = view.burst if view.rate else view.amount
    taken = max(whole - view.free, 0)
    style = "red" if view.free <= 0 else "yellow" if taken * 5 >= whole * 4 else ""
    return [
        view.name,
        Cell(screen.bar(_BAR if taken >= whole else taken * _BAR // whole, _BAR, _BAR), style),
        exact_amount(view.unit, view.used),
        exact_amount(view.unit, view.reserved) if view.reserved else "",
        Cell(exact_amount(view.unit, view.free), style),
        _whole(view),
        _resets(view, moments),
        str(view.waiting) if view.waiting else "",
        view.when_empty if view.when_empty != "hold" else "",
        view.source,
    ]


def _whole(view: BudgetView) -> str:
    text = exact_amount(view.unit, view.amount - view.added)
    if view.added:
        text += f" + {exact_amount(view.unit, view.added)}"
    if view.rate and view.burst != view.amount:
        text += f" (burst {exact_amount(view.unit, view.burst)})"
    if view.source != "provider" and view.provider_amount is not None:
        text += f" (provider {exact_amount(view.unit, view.provider_amount)})"
    return text


def _resets(view: BudgetView, moments: LogTimes) -> str:
    if view.rate:
        return "refills"
    if view.resets_at is None:
        return "unused"
    return f"in {span(view.resets_at - moments.now)}"
