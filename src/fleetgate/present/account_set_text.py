"""Account sets in a sentence: which accounts the requests of a provider use as one, with their conversations (Z1)."""

from __future__ import annotations

from collections.abc import Iterable

from fleetgate.core.entities import AccountSet, Ticket
from fleetgate.core.model_names import account_name, parse_model
from fleetgate.core.queue.positions import TicketView
from fleetgate.core.state.state import State
from fleetgate.present.text import count


def all_sets(state: State) -> list[str]:
    """A sentence for each set, such as `anthropic without an account uses work (1 conversation), then api`."""
    return [_sentence(state, rule) for _, rule in sorted(state.accounts.rules.items())]


def sets_of(state: State, tickets: Iterable[Ticket]) -> list[str]:
    """The same for the sets that these requests may use."""
    rules = state.accounts.rules
    if not rules:
        return []
    models = {model for ticket in tickets for model in ticket.spec.models}
    found = {rule.provider: rule for text in models if (rule := state.accounts.of_model(parse_model(text))) is not None}
    return [_sentence(state, rule) for _, rule in sorted(found.items())]


def _sentence(state: State, rule: AccountSet) -> str:
    numbers = state.accounts.homes.numbers

    def listed(names: Iterable[str]) -> str:
        talks = {name: numbers.get(account_name(rule.provider, name), 0) for name in names}
        return ", ".join(
            f"{name} ({count(number, 'conversation')})" if number else name for name, number in talks.items()
        )

    then = f", then {listed(rule.then)}" if rule.then else ""
    return f"{rule.provider} without an account uses {listed(rule.use)}{then}"


def accounts_text(view: TicketView) -> str:
    """The accounts that a waiting request may use; nothing where it is no matter of sets."""
    if not view.accounts:
        return ""
    home = view.ticket.spec.home
    stays = f"; its conversation uses {home.partition('@')[2] or 'default'}" if home else ""
    return f"it may use {', '.join(view.accounts)}{stays}"
