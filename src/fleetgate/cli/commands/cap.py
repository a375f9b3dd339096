"""`fleetgate cap`: caps set at run time, which override the config file (rule C2).

The rule: a new value is synced to disk before the command reports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import click
from msgspec.structs import asdict, replace

from fleetgate.cli.click_helpers import (
    entered_text,
    gate_to_read,
    json_option,
    kind_option,
    opened_gate,
    read_cooldown_ms,
    read_duration_ms,
    show_result,
    tell,
)
from fleetgate.cli.completion_values import complete_selector
from fleetgate.cli.name_arguments import NAME
from fleetgate.cli.output.cap_table import COLUMNS, rows
from fleetgate.cli.output.table import show_table
from fleetgate.cli.read_only_gate import say_json
from fleetgate.config.environment import OPUS_CAP, Environment
from fleetgate.config.errors import BadValue, ConfigError, ConfigProblem
from fleetgate.config.file import LARGEST_FILE, decode
from fleetgate.config.import_caps import parse_caps
from fleetgate.config.value_types import read_cap_name, read_cap_text, read_on_429, read_refusals
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import parse_selector
from fleetgate.core.pools.pool import Pool
from fleetgate.core.state.state import State
from fleetgate.gate.liveness.host_observer import observe_memory
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.cap_listing import (
    VARIABLES,
    CapRow,
    cap_text,
    cap_to_remove,
    check_set,
    kind_set,
    lines,
    quoted,
    with_reserve,
)
from fleetgate.present.name_lookup import check_selector, entered, kind_for, succeeded
from fleetgate.present.text import count, some


@click.group(short_help="Set, remove, reset, list and import caps.", no_args_is_help=True)
def command() -> None:
    """Set, remove, reset, list and import caps.

    Values set here override the config file for all processes until reset.

    \b
    fleetgate cap set host 5
    fleetgate cap set 'anthropic/claude-opus-*' 6
    fleetgate cap reset host
    fleetgate cap ls
    """


# Setting.


@command.command("set", short_help="Set a cap.")
@click.argument("selector", type=NAME, shell_complete=complete_selector)
@click.argument("cap", metavar="N|auto")
@click.option(
    "--cooldown", metavar="DURATION", help="How long a released slot stays reserved, e.g. 350ms; 0 disables it."
)
@click.option("--on-429", metavar="RULE", help="What a rate limit does: adapt, step, pause or fixed.")
@click.option("--refusals", metavar="PRICE", help="With adapt: what a refused call costs: cheap, normal or expensive.")
@click.option("--explore/--no-explore", default=None, help="With adapt: let the limit grow above the cap.")
@click.option("--max-hold", metavar="DURATION", help="Stop an agent after this long; 0: no limit.")
@click.option(
    "--usage-gate/--no-usage-gate",
    default=None,
    help="Ask the provider for its own count before a waiting request starts.",
)
@click.option("--reserve", metavar="N|PERCENT", help="Slots kept for interactive work, e.g. 1 or 25%; 0: none.")
@click.option("--lendable/--not-lendable", default=None, help="Let others use the reserve while no person waits.")
@click.option("--name", metavar="NAME", help="Name for the reason code: NAME_concurrency_cap.")
@kind_option
@json_option
def set_(
    selector: str,
    cap: str,
    cooldown: str | None,
    on_429: str | None,
    refusals: str | None,
    explore: bool | None,
    max_hold: str | None,
    usage_gate: bool | None,
    reserve: str | None,
    lendable: bool | None,
    name: str | None,
    kind: str | None,
    as_json: bool,
) -> None:
    """Set the maximum number of slots of a selector's pools, and their options; other options stay unchanged.

    SELECTOR is host, project, project:NAME, key, key:NAME, session, provider, provider/model, or one of the last two
    with @account and * globs. Without an account, project or key the cap applies to each. A cap counts agents; with
    --kind requests it counts model calls. A cap of access keys counts model calls; with --kind agents it counts agents.
    `host auto` follows free memory. Setting a cap restores a limit that rate limits have lowered.

    \b
    fleetgate cap set host 5
    fleetgate cap set 'anthropic@work/claude-opus-*' 8 --name work_opus
    fleetgate cap set umans 4 --kind requests --cooldown 350ms --on-429 step
    fleetgate cap set host 6 --reserve 1
    fleetgate cap set key:ci 2

    Exit codes: 0; 64 when something is invalid (nothing is changed).
    """
    environment = Environment.read()
    gate = opened_gate()
    state = gate.read()
    check_selector(selector, state, gate.settings)
    rule = _read_rule(selector, cap, cooldown, on_429, max_hold, name)
    refusals = _value("--refusals", read_refusals, refusals)
    rule = replace(rule, usage_gate=usage_gate, explore=explore, lendable=lendable, refusals=refusals)
    if reserve is not None:
        rule = with_reserve(rule, reserve)
    rule = replace(rule, kind=kind_for(state, selector, kind, default="agents"))
    if rule.auto and rule.kind != "agents":
        raise BadRequest("auto: only the agents of a host follow free memory; valid is a whole number")
    key = (rule.kind, selector)
    before = state.rules.caps.get(key)
    reduced = [pool.id for pool in _pools(state, rule) if pool.limiter.is_reduced]
    commands: list[cmd.Command] = [cmd.SetRule(rule)]
    if rule.auto:
        commands.append(observe_memory(gate.settings, state, gate.host))
    events = succeeded(gate.decide(commands, durable=True))
    line = next(
        line for line in lines(gate.state, Environment()) if (line.kind, line.selector) == (rule.kind, selector)
    )
    if as_json:
        say_json({**asdict(line), "entered": entered(events)})
        return
    was = f", was {cap_text(before.cap, before.auto)} ({before.source})" if before is not None and before.capped else ""
    kept = "" if line.reserve is None else f", {line.reserve} of it kept for interactive work"
    tell(f"{selector} ({rule.kind}): cap {_cap_now(gate, line)}{kept}{was}{entered_text(events)}")
    if reduced:
        tell(f"restored after rate limits: {some(reduced)}")
    for pool in _pools(gate.state, rule):
        if pool.used > pool.limit:
            tell(f"{pool.id}: {pool.used} running; no new ones start until the count is below the cap")
    if kind is None and parse_selector(selector).scope in ("model", "key"):
        tell(_other_kind(rule.kind))
    if usage_gate and not gate.usage.can_ask(selector.partition("/")[0]):
        tell(f"note: {_no_usage(selector)}")
    _tell_environment(environment, rule)


def _read_rule(
    selector: str, cap: str, cooldown: str | None, on_429: str | None, max_hold: str | None, name: str | None
) -> Rule:
    """The checked options, without the kind."""
    slots, auto = _slots(selector, cap)
    if on_429 is not None and parse_selector(selector).scope != "model":
        raise BadRequest(f"--on-429: a rate limit never acts on {selector}; valid for providers and models")
    return Rule(
        kind="",
        selector=selector,
        cap=slots,
        auto=auto,
        cooldown_ms=read_cooldown_ms("--cooldown", cooldown),
        on_429=_value("--on-429", read_on_429, on_429),
        max_hold_ms=read_duration_ms("--max-hold", max_hold, zero=True),
        name=_value("--name", read_cap_name, name),
    )


def _other_kind(kind: str) -> str:
    if kind == "agents":
        return "this counts agents (processes that `fleetgate run` starts); to count model calls, use --kind requests"
    return "this counts model calls; to count agents (processes that `fleetgate run` starts), use --kind agents"


def _no_usage(selector: str) -> str:
    return (
        f"this config has no usage query for {selector} (providers.NAME.usage_path, usage_field, base_url, key_env), "
        "or its key is not set: processes with this config do not ask the provider"
    )


def _value(name: str, read: Callable[[object], str], text: str | None) -> str | None:
    try:
        return None if text is None else read(text)
    except BadValue as error:
        raise BadRequest(f"{name}: {error}") from error


def _pools(state: State, rule: Rule) -> list[Pool]:
    """The pools of a rule's cap."""
    pools = state.pools.values()
    return [pool for pool in pools if pool.kind == rule.kind and pool.cap.selector.text == rule.selector]


def _slots(selector: str, cap: str) -> tuple[int | None, bool]:
    """The cap as a number, or whether it is automatic."""
    if cap == "auto":
        if selector != "host":
            raise BadRequest(f"auto: only host follows free memory; valid for {selector} is a whole number from 1")
        return None, True
    try:
        return read_cap_text(cap), False
    except BadValue as error:
        hint = f"; to admit no agents: `fleetgate pause {selector}`" if cap.strip("+-") == "0" else ""
        extra = ', or "auto"' if selector == "host" else ""
        raise BadRequest(f"cap of {selector}: {error}{extra}{hint}") from error


def _tell_environment(environment: Environment, rule: Rule) -> None:
    """A note if this shell's environment overrides the new cap."""
    own, families = (dict(caps) for caps in environment.caps_for(rule.kind))
    number = own.get(rule.selector, families.get(parse_selector(rule.selector).family))
    if number is not None:
        variable = VARIABLES[rule.kind] if rule.selector in own else OPUS_CAP
        tell(f"note: {variable} in this environment sets {number} for requests that are made from here")


def _cap_now(gate: DirectGate, line: CapRow) -> str:
    if not line.auto:
        return cap_text(line.cap, line.auto)
    return f"auto (now {gate.state.auto_caps.get(gate.host, 1)})"


# Removing and resetting.


@command.command("rm", short_help="Remove a cap, even one of the config file.")
@click.argument("selector", type=NAME, shell_complete=complete_selector)
@kind_option
@json_option
def rm(selector: str, kind: str | None, as_json: bool) -> None:
    """Remove a cap, even one of the config file. Its pools are unlimited, and their pauses end.

    \b
    fleetgate cap rm '*/claude-opus-*'

    Exit codes: 0; 64 when there is no such cap.
    """
    gate = opened_gate()
    state = gate.read()
    found = kind_for(state, selector, kind)
    before = cap_to_remove(state, found, selector)
    events = [] if before.unlimited else gate.one(cmd.RemoveCap(found, selector), durable=True)
    was = f"{cap_text(before.cap, before.auto)} ({before.source})"
    now = "has no cap (unchanged)" if before.unlimited else f"no cap, was {was}{entered_text(events)}"
    lines = [f"{selector} ({found}): {now}"]
    if under := _below_run_time(state, found, selector):
        lines.append(f"this hides {under}; `fleetgate cap reset {quoted(selector)}` restores it")
    show_result(as_json, {"selector": selector, "kind": found, "cap": None, "entered": entered(events)}, *lines)


@command.command("reset", short_help="Undo run-time values: back to the config file.")
@click.argument("selector", type=NAME, shell_complete=complete_selector)
@kind_option
@json_option
def reset(selector: str, kind: str | None, as_json: bool) -> None:
    """Undo all run-time values of a selector (cap, cooldown and options): back to the config file.

    \b
    fleetgate cap reset host

    Exit codes: 0; 64 when nothing was set at run time for it.
    """
    gate = opened_gate()
    state = gate.read()
    found = kind or kind_set(state, selector) or kind_for(state, selector)
    check_set(state, found, selector)
    events = gate.one(cmd.ResetCap(found, selector), durable=True)
    cap = gate.state.rules.caps.get((found, selector))
    now = cap if cap is not None and cap.capped else None
    cap_now, auto, source = (None, False, None) if now is None else (now.cap, now.auto, now.source)
    document = {"selector": selector, "kind": found, "cap": cap_now, "auto": auto, "source": source}
    text = f"cap {cap_text(now.cap, now.auto)} ({now.source})" if now is not None else "no cap"
    text = f"{selector} ({found}): back to {text}{entered_text(events)}"
    show_result(as_json, {**document, "entered": entered(events)}, text)


def _below_run_time(state: State, kind: str, selector: str) -> str:
    """The cap of a selector in the config file, or nothing."""
    rule = state.rules.file.get((kind, selector))
    if rule is None or (rule.cap is None and not rule.auto):
        return ""
    return f"{cap_text(rule.cap, rule.auto)} from the file"


# Listing.


@command.command("ls", short_help="List every cap in force and its source.")
@json_option
def ls(as_json: bool) -> None:
    """List every cap in force, with its options, its source, and what it hides.

    Caps set in the environment of this shell are included; they apply only to requests from here.

    \b
    fleetgate cap ls
    fleetgate cap ls --json
    """
    environment = Environment.read()
    gate = gate_to_read()
    found = lines(gate.read(), environment)
    if as_json:
        say_json({"caps": found})
    else:
        show_table(COLUMNS, rows(found))


# Importing.


@command.command("import", short_help="Set the caps of a dispatch-model-caps.conf.")
@click.argument("file")
@json_option
def import_(file: str, as_json: bool) -> None:
    """Set caps for agents from a dispatch-model-caps.conf, all of them or none; - reads standard input.

    \b
    opus-4-6=4                  caps */claude-opus-4-6
    OPUS_CONCURRENCY_CAP=4      caps */claude-opus-*
    # a comment

    \b
    fleetgate cap import ~/.config/aidevops/dispatch-model-caps.conf

    Exit codes: 0; 78 when a line is invalid: its number is printed, and nothing is imported.
    """
    caps = parse_caps(_text(file), file)
    gate = opened_gate()
    gate.read()
    rules = [cmd.SetRule(Rule("agents", selector, cap=cap)) for selector, cap in caps]
    events = succeeded(gate.decide(rules, durable=True)) if rules else []
    listed = [{"selector": selector, "kind": "agents", "cap": cap} for selector, cap in caps]
    lines = [f"{selector} (agents): cap {cap}" for selector, cap in caps]
    lines.append(f"{count(len(caps), 'cap')} set from {file}{entered_text(events)}" if caps else f"{file} sets no caps")
    show_result(as_json, {"caps": listed, "entered": entered(events)}, *lines)


def _text(file: str) -> str:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(LARGEST_FILE + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(ConfigProblem(file, f"cannot be read: {error.strerror}")) from error
    except ValueError:  # a NUL in the path
        raise ConfigError(ConfigProblem(repr(file), "is not a path")) from None
    if len(data) > LARGEST_FILE:
        raise ConfigError(ConfigProblem(file, "is larger than 1 MiB; a list of caps is expected"))
    return decode(data, file)
