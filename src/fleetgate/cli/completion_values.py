"""Values that a shell completes: ids, names, pools and models of the store.

The rules: completion creates no store, changes nothing, prints nothing but values, and takes at most a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from threading import Thread

import click
from click.shell_completion import CompletionItem

from fleetgate.cli.open_gate import load_config, open_gate
from fleetgate.config.paths import sqlite_folder, store_url
from fleetgate.core.access.keys import key_selector
from fleetgate.core.errors import FleetgateError
from fleetgate.core.views.budget_views import budget_views
from fleetgate.core.views.pool_and_lease_views import pool_views
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.name_lookup import specs_of
from fleetgate.present.request_text import label

_PATIENCE_S = 1.0
_MOST_VALUES = 200

# A value and what it is, which zsh and fish show next to it.
Values = Iterable[tuple[str, str]]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _from_store(read: Callable[[DirectGate], Values]) -> Complete:
    """A completion that reads its values from the store; none on any error, or when that takes too long."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, begun = incomplete.rpartition(",")  # `-m MODEL,MODEL` completes the last one
        found: list[tuple[str, str]] = []

        def look() -> None:
            try:
                folder = sqlite_folder(store_url())
                if folder is not None and not os.path.isdir(folder):
                    return
                gate = open_gate(configured=False)
                gate.replica.catch_up()
                found.extend(each for each in read(gate) if each[0].startswith(begun))
            except Exception:  # whatever it is: a person who presses Tab gets no values, and no traceback
                pass

        thread = Thread(target=look, daemon=True)
        thread.start()
        thread.join(_PATIENCE_S)
        values = dict(sorted(found)[:_MOST_VALUES])
        return [CompletionItem(before + comma + value, help=text or None) for value, text in values.items()]

    return complete


def _tickets(gate: DirectGate) -> Values:
    return [(ticket.id, label(ticket)) for ticket in gate.state.tickets.values() if not ticket.job]


def _leases(gate: DirectGate) -> Values:
    return [(lease.id, label(lease)) for lease in gate.state.leases.values()]


def _jobs(gate: DirectGate) -> Values:
    from fleetgate.jobs import job_store

    return [(view.id, f"{view.state}: {view.job.title}") for view in job_store.views(gate)]


def _pools(gate: DirectGate) -> Values:
    return [
        ("host", "this machine"),
        *((view.pool, view.kind) for view in pool_views(gate.state, gate.now(), gate.host)),
    ]


def _selectors(gate: DirectGate) -> Values:
    known = [(selector, kind) for kind, selector in gate.state.rules.caps]
    keys = [(key_selector(name), "one access key") for name in gate.state.access_keys]
    own = [("host", "this machine"), ("project", "each project"), ("key", "each access key")]
    return [*own, *keys, *known, *_models(gate)]


def _budget_selectors(gate: DirectGate) -> Values:
    projects = [(f"project:{name}", "one project") for name, _ in _projects(gate)]
    return [*_selectors(gate), *projects]


def _budgets(gate: DirectGate) -> Values:
    return [(view.name, view.source) for view in budget_views(gate.state, gate.now())]


def _models(gate: DirectGate) -> Values:
    """Models of the config file, and of what is running, waiting, capped or backed off."""
    state = gate.state
    names = {model for spec in specs_of(state) for model in spec.models}
    names |= {key for key in [*state.backoffs, *(selector for _, selector in state.rules.caps)] if "/" in key}
    try:
        loaded = load_config()
        names |= set(loaded.settings.models) if loaded is not None else set()
    except FleetgateError:
        pass
    return [(name, "") for name in names if "*" not in name]


def _backoffs(gate: DirectGate) -> Values:
    return [(key, backoff.reason) for key, backoff in gate.state.backoffs.items()]


def _projects(gate: DirectGate) -> Values:
    return [("default", ""), *((spec.project, "") for spec in specs_of(gate.state))]


def _hosts(gate: DirectGate) -> Values:
    specs = [lease.ticket.spec for lease in gate.state.leases.values()]
    return [(gate.host, "this machine"), *((spec.host, "") for spec in specs if spec.host)]


def _cancellable(gate: DirectGate) -> Values:
    from fleetgate.jobs import state_machine

    over = tuple(state_machine.FINAL)
    return [*_tickets(gate), *(job for job in _jobs(gate) if not job[1].startswith(over))]


def _sessions(gate: DirectGate) -> Values:
    from fleetgate.gate import agent_sessions

    return [(place.key, place.agent) for place, _ in agent_sessions.every(gate.log)]


def _outputs(gate: DirectGate) -> Values:
    from fleetgate.jobs import run_outputs

    runs = run_outputs.every(gate.folder)
    return [*_jobs(gate), *((ident, f"{each.name}: {each.command}") for ident, each in runs.items())]


def _keys(gate: DirectGate) -> Values:
    return [(name, key.role) for name, key in gate.state.access_keys.items()]


complete_key = _from_store(_keys)
complete_ticket = _from_store(_tickets)
complete_lease = _from_store(_leases)
complete_job = _from_store(_jobs)
complete_output = _from_store(_outputs)
complete_cancellable = _from_store(_cancellable)
complete_pool = _from_store(_pools)
complete_selector = _from_store(_selectors)
complete_budget_selector = _from_store(_budget_selectors)
complete_budget = _from_store(_budgets)
complete_model = _from_store(_models)
complete_backoff = _from_store(_backoffs)
complete_project = _from_store(_projects)
complete_host = _from_store(_hosts)
complete_session = _from_store(_sessions)
