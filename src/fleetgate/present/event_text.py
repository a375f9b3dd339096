"""Events of the log, as sentences (rule O7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleetgate.config.units import format_duration
from fleetgate.core import events as ev
from fleetgate.core.entities import Reason, Rule
from fleetgate.core.usage import Usage
from fleetgate.gate.liveness import process_identity
from fleetgate.present.access.key_listing import rights_text
from fleetgate.present.budgets.plan_windows import PLAN_SENTENCES
from fleetgate.present.cap_listing import reserve_said
from fleetgate.present.json.events import without_secrets
from fleetgate.present.json.usage import unit_of
from fleetgate.present.request_text import command_of
from fleetgate.present.text import amount_text, author, count, span, spent_text
from fleetgate.signals.agents.placeholders import filled_text

_COMMAND = 60
_WITH_AUTHOR = frozenset(  # their sentences name the author themselves; of UsageAsked it is a process
    (ev.Reclaimed, ev.Cancelled, ev.StopRequested, ev.Approved, ev.KeySet, ev.KeyRemoved, ev.UsageAsked)
)
_STATES = {"cancelled": "was cancelled", "lost": "is lost"}  # the others are words that fit a sentence


def sentence(event: ev.Event, at: int) -> str:
    """An event as a sentence. A change names its author (rule E3)."""
    if isinstance(event, ev.Paused):
        text = _paused(event, at)
    elif isinstance(event, ev.BackedOff):
        text = _backed_off(event, at)
    else:
        text = _SENTENCES[type(event)](event)
    by = getattr(event, "by", "") if type(event) not in _WITH_AUTHOR else ""
    return f"{text} (by {author(by)})" if by else text


def _queued(event: ev.Queued) -> str:
    models = ", ".join(event.ticket.spec.models) or "a slot"
    who = _named(event.ticket.id, event.ticket.name)
    by = f" (by {author(event.ticket.by)})" if event.ticket.by else ""
    return f"{who} is waiting for {models}: {_brief(event.reason)}{_quoted(command_of(event.ticket))}{by}"


def _deferred(event: ev.Deferred) -> str:
    return f"{event.id} was refused: {_brief(event.reason)}{_quoted(event.command)}"


def _granted(event: ev.Granted) -> str:
    waited = f" after {span(event.waited_ms)} in the queue" if event.waited_ms else ""
    command = _quoted(filled_text(event.ticket.command, event.model)) if event.ticket is not None else ""
    who = event.id if event.ticket is None else _named(event.id, event.ticket.name)
    if event.adopted:
        why = _ADOPTED.get(event.adopted, event.adopted)
        return f"{who} is already running and is counted from now on ({why}){command}"
    switch = f"; {event.why}" if event.why else ""
    return f"{who} got {event.model or 'a slot'}{waited}{command}{switch}"


_ADOPTED = {
    "log_lost": "the store had lost its lease",
    "failed_open": "it began while there was no store",
    "cut_off": "its host was cut off for too long, and its lease had been taken back",
}


def _claimed(event: ev.Claimed) -> str:
    return f"{event.id} is running as {_process(event.child)}" if event.child else f"{event.id} took its slot"


def _renewed(event: ev.Renewed) -> str:
    by = f", through {_process(event.holder)}" if event.holder else ""
    return f"{event.id} was renewed by its client{by}"


def _released(event: ev.Released) -> str:
    end = f"signal {event.signal}" if event.signal else f"exit {event.exit_code}" if event.exit_code is not None else ""
    what = ", ".join(part for part in (event.outcome, end, event.evidence) if part)
    held = f"held {event.model or 'a slot'} for {span(event.held_ms)}"
    return f"{_named(event.id, event.name)} ended: {what}; {held}{_spent(event)}"


def _spent(event: ev.Released | ev.Reclaimed) -> str:
    """What was used, in all, if that is known."""
    used = event.total or event.usage
    return "" if used is None else f"; used {spent_text(used)}"


def _job_ended(event: ev.JobEnded) -> str:
    name = f" ({event.name})" if event.name else ""
    tries = f" after {count(event.attempts, 'attempt')}" if event.attempts > 1 else ""
    why = f": {event.why}" if event.why else ""
    return f"job {event.id}{name} {_STATES.get(event.state, event.state)}{tries}{why}"


def _reclaimed(event: ev.Reclaimed) -> str:
    causes = {
        "lost": "its process is gone",
        "forced": "by force",
        "overstayed": "it held its slot longer than its pool allows",
        "unrenewed": "its client did not renew it",
    }
    by = f" ({event.by})" if event.by else ""
    what = causes.get(event.cause, event.cause)
    if event.by and event.cause == "lost":
        what, by = "its process is gone", f", stopped by {event.by}"
    if event.silent:
        what = f"its host {event.silent} was silent for too long (it may still be running there)"
    held = f"held {event.model or 'a slot'} for {span(event.held_ms)}"
    return f"{_named(event.id, event.name)} was taken back, {what}{by}; {held}{_spent(event)}"


def _dropped(event: ev.Dropped) -> str:
    causes = {"unrenewed": "its client is gone", "silent": "its host was silent for too long"}
    return f"{event.id} left the queue: {causes.get(event.why, 'its process is gone')}"


def _cancelled(event: ev.Cancelled) -> str:
    by = f" by {event.by}" if event.by else ""
    return f"{event.id} left the queue, cancelled{by}{_quoted(event.command)}"


def _expired(event: ev.Expired) -> str:
    return f"{event.id} left the queue: expired after {span(event.after_ms)}{_quoted(event.command)}"


def _bumped(event: ev.Bumped) -> str:
    return f"{event.id} was moved to the front" if event.order < 0 else f"{event.id} has priority {event.priority} now"


def _reserved(event: ev.Reserved) -> str:
    pools = ", ".join(key.partition(" ")[2] for key in event.pools)
    return f"free slots of {pools} are kept for {event.id}"


def _rule_set(event: ev.RuleSet) -> str:
    return f"set at run time: {_of(event.rule)} {', '.join(_said(event.rule)) or 'nothing'}"


def _said(rule: Rule) -> list[str]:
    """The settings of a rule, in words."""
    said = []
    if rule.cap is not None or rule.auto:
        said.append(f"cap {'auto' if rule.auto else rule.cap}")
    if rule.unlimited:
        said.append("no cap")
    if rule.cooldown_ms is not None:
        said.append(f"cooldown {format_duration(rule.cooldown_ms)}")
    if rule.on_429 is not None:
        said.append(f"on_429 {rule.on_429}")
    if rule.refusals is not None:
        said.append(f"refusals {rule.refusals}")
    if rule.explore is not None:
        said.append(f"explore {'on' if rule.explore else 'off'}")
    if rule.max_hold_ms is not None:
        said.append(f"maximum hold {format_duration(rule.max_hold_ms)}")
    if rule.reserve is not None or rule.reserve_share is not None:
        said.append(f"reserve {reserve_said(rule.reserve or 0, rule.reserve_share or 0)}")
    if rule.lendable is not None:
        said.append("reserve lendable" if rule.lendable else "reserve not lendable")
    if rule.name is not None:
        said.append(f"name {rule.name}")
    if rule.usage_gate is not None:
        said.append(f"usage gate {'on' if rule.usage_gate else 'off'}")
    return said


def _file_loaded(event: ev.FileLoaded) -> str:
    budgets = f" and {count(len(event.budgets), 'budget')}" if event.budgets else ""
    return f"{event.path} is in force now, with {count(len(event.rules), 'cap')}{budgets}"


def _hour_closed(event: ev.HourClosed) -> str:
    total = Usage()
    for row in event.rows:
        total = total.plus(row.usage)
    return f"an hour is over: {count(total.calls, 'call')}, {spent_text(total)}"


def _budget_set(event: ev.BudgetSet) -> str:
    rule = event.rule
    options = [f"up to {amount_text(rule.unit, rule.burst)} saved up"] if rule.burst else []
    options += [f"when it is empty: {rule.when_empty}"] if rule.when_empty != "hold" else []
    options += [f"estimate {rule.estimate}"] if rule.estimate != "expected" else []
    more = f" ({', '.join(options)})" if options else ""
    return f"budget set at run time: {rule.selector} {amount_text(rule.unit, rule.amount)} per {rule.per}{more}"


def _budget_reached(event: ev.BudgetReached) -> str:
    unit = unit_of(event.budget)
    used = f"{amount_text(unit, event.used)} of {amount_text(unit, event.amount)}"
    effect = _EMPTY.get(event.when_empty, "") if event.percent >= 100 else ""
    return f"budget {event.budget} is {event.percent}% used: {used}{effect}"


_EMPTY = {
    "hold": "; new requests wait",
    "stop": "; new requests wait, and running agents are stopped",
    "fallback": "; the next model is used",
}


def _rates_observed(event: ev.RatesObserved) -> str:
    left = [(amount_text(each.unit, each.remaining), amount_text(each.unit, each.limit)) for each in event.readings]
    rates = [f"{remaining} of {limit}" for remaining, limit in left]
    refused = f"; a call was refused for {event.refused}" if event.refused else ""
    return f"{event.model}: its provider reports {', '.join(rates) or 'no rates'} left{refused}"


def _observed(event: ev.Observed) -> str:
    agents = ", ".join(f"{number} {model or 'without a model'}" for model, number in event.foreign)
    auto = "" if event.auto_cap is None else f"; room for {count(event.auto_cap, 'agent')}"
    return f"on {event.host}, started outside Fleetgate: {agents or 'none'}{auto}"


def _paused(event: ev.Paused, at: int) -> str:
    why = " after a rate limit" if event.cause == "rate_limited" else ""
    left = event.until - at
    how_long = f"for {span(left)}" if left < 10**11 else "until it is resumed"
    return f"{_of(event)} is paused {how_long}{why}"


def _reduced(event: ev.Reduced) -> str:
    return f"{_of(event)} is auto-reduced to {event.limit} (cap {event.cap}) after a rate limit"


def _refused(event: ev.Refused) -> str:
    limit = f"the limit is {event.limit} (cap {event.cap})"
    meaning = _REFUSALS.get(event.why, f"verdict {event.why}")  # a later release may know more of them
    return f"{_of(event)}: refused with {event.level} concurrent calls, {meaning}; {limit}"


# What a refusal was taken to mean (core/limits/adaptive.py).
_REFUSALS = {
    "exact": "one more than was confirmed",
    "drop": "which had worked: the provider's limit has dropped",
    "probe": "a trial above the limit",
    "lag": "because finished calls count for longer than assumed",
    "alone": "though nothing else was in flight: concurrency is not the cause",
    "again": "one too many again, near the limit that was found before",
    "fit": "in the same incident",
}


def _usage_answered(event: ev.UsageAnswered) -> str:
    said = f"has no answer: {event.error}" if event.count is None else f"counts {event.count} in flight"
    return f"the provider of {_of(event)} {said}; the limit is {event.limit}"


def _bypassed(event: ev.Bypassed) -> str:
    return f"{_process(event.holder)} ran without a slot (FLEETGATE_BYPASS){_quoted(event.command)}"


def _of(event: Any) -> str:
    """The pool or selector that an event is about."""
    return f"{getattr(event, 'pool', '') or event.selector} ({event.kind})"


def _process(process: str) -> str:
    return f"process {process_identity.pid_of(process)} on {process_identity.host_of(process)}"


def _backed_off(event: ev.BackedOff, at: int) -> str:
    seen = f": {event.evidence}" if event.evidence else ""
    return f"{event.key} is backed off for {span(event.until - at)}, {event.reason}{seen}"


def _backoff_ended(event: ev.BackoffEnded) -> str:
    why = {"credential": "the credential has changed", "account": "the credential names another account"}
    return f"{event.key} may be used again ({why.get(event.why, event.why)})"


def _named(ident: str, name: str) -> str:
    """`7kq2m9x4ab (review)`."""
    return f"{ident} ({name})" if name else ident


def _brief(reason: Reason) -> str:
    """A reason without the advice at its end, which is for a waiting user."""
    return reason.text.partition("; ")[0]


def _quoted(command: str) -> str:
    if not command:
        return ""
    command = without_secrets(command)
    return f" [{command if len(command) <= _COMMAND else command[: _COMMAND - 1] + '…'}]"


def _key_set(event: ev.KeySet) -> str:
    if event.rotated:
        return f"access key {event.key.name} was replaced by {event.by}; the old one is worth nothing"
    return f"access key {event.key.name} was created by {event.by}: {rights_text(event.key)}"


def _key_removed(event: ev.KeyRemoved) -> str:
    return f"access key {event.name} was removed by {event.by}"


_SENTENCES: dict[type, Callable[[Any], str]] = {
    ev.Queued: _queued,
    ev.Deferred: _deferred,
    ev.Granted: _granted,
    ev.Claimed: _claimed,
    ev.Recovering: lambda event: (
        f"no agents are admitted for a few seconds: {event.why or 'the store may have lost commits'}"
    ),
    ev.Draining: lambda event: f"no new agents start on {event.host}",
    ev.DrainEnded: lambda event: f"{event.host} accepts new agents again",
    ev.Renewed: _renewed,
    ev.Returned: lambda event: f"{event.id} did not take its slot: it is skipped until its process responds",
    ev.Asked: lambda event: f"{event.id} is waiting in the queue again",
    ev.Offered: lambda event: f"worker {_process(event.holder)} is ready to run {event.id}",
    ev.Withdrawn: lambda event: f"no worker is ready to run {event.id}; it keeps its place",
    ev.Held: lambda event: f"{event.id} is held until it is approved{_quoted(event.command)}",
    ev.Approved: lambda event: f"{event.id} was approved{f' by {event.by}' if event.by else ''}",
    ev.JobEnded: _job_ended,
    ev.Released: _released,
    ev.Settled: lambda event: f"{event.id} has used {spent_text(event.usage)}, and is still running",
    ev.HourClosed: _hour_closed,
    ev.BudgetSet: _budget_set,
    ev.BudgetRemoved: lambda event: f"budget {event.selector} {event.unit}/{event.per} was removed",
    ev.BudgetUnset: lambda event: f"budget {event.selector} {event.unit}/{event.per}: the config file decides again",
    ev.BudgetReset: lambda event: f"budget {event.budget} was reset: nothing of it is used",
    ev.BudgetAdded: lambda event: f"budget {event.budget} has {amount_text(unit_of(event.budget), event.amount)} more",
    ev.BudgetReached: _budget_reached,
    ev.RatesObserved: _rates_observed,
    **PLAN_SENTENCES,
    ev.KeySet: _key_set,
    ev.KeyRemoved: _key_removed,
    ev.Reclaimed: _reclaimed,
    ev.StopRequested: lambda event: f"{event.id} is being stopped, requested by {event.by}",
    ev.Cancelled: _cancelled,
    ev.Expired: _expired,
    ev.Dropped: _dropped,
    ev.Bumped: _bumped,
    ev.Reserved: _reserved,
    ev.RuleSet: _rule_set,
    ev.CapRemoved: lambda event: f"{_of(event)} no longer has a cap",
    ev.CapReset: lambda event: f"{_of(event)} follows the config file again",
    ev.SelectorSeen: lambda event: f"{_of(event)} is counted from now on: the environment of a process caps it",
    ev.FileLoaded: _file_loaded,
    ev.Observed: _observed,
    ev.Resumed: lambda event: f"{_of(event)} is open again",
    ev.Reduced: _reduced,
    ev.Accepted: lambda event: f"{_of(event)}: {event.level} concurrent calls confirmed ({event.id})",
    ev.Refused: _refused,
    ev.UsageAsked: lambda event: f"{_process(event.by)} asks the provider of {_of(event)} what is in flight",
    ev.UsageAnswered: _usage_answered,
    ev.BackoffEnded: _backoff_ended,
    ev.Chosen: lambda event: f"{event.model} was chosen for {event.role}",
    ev.Bypassed: _bypassed,
}
