"""The homes of conversations: the account of a set that each one used last (rule Z3).

A provider keeps the beginning of a conversation in its cache for the account that sent it. So the next request of the
conversation goes to the same account. The homes follow from the grants, so they are part of the state. They are
bounded: a conversation that was quiet for an hour has no home any more, and beyond a number of them the quietest is
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST_HOMES: Final = 2048
KEPT_MS: Final = 3_600_000
MOST_TEXT: Final = 200  # of what names a conversation

Home = tuple[str, str, int]  # conversation, account as `provider@account`, when it was used last


class Homes:
    """The homes of one state's conversations, the quietest first."""

    def __init__(self) -> None:
        self._all: dict[str, tuple[str, int]] = {}
        self._quiet_at = 0  # none was quiet for long before
        self.numbers: dict[str, int] = {}  # how many conversations each account is the home of

    def find(self, conversation: str, now: int) -> str:
        """The account that a conversation uses, or nothing."""
        known = self._all.get(conversation)
        return known[0] if known is not None and now - known[1] < KEPT_MS else ""

    def use(self, conversation: str, account: str, now: int) -> None:
        """A conversation uses this account now."""
        homes = self._all
        known = homes.pop(conversation, None)
        homes[conversation] = (account, now)  # the latest comes last
        if known is None or known[0] != account:
            if known is not None:
                self._leave(known[0])
            self.numbers[account] = self.numbers.get(account, 0) + 1
        if now >= self._quiet_at or len(homes) > MOST_HOMES:
            self._forget_quiet(now)

    def _forget_quiet(self, now: int) -> None:
        """Forget conversations that were quiet for long, and the quietest where there are too many."""
        homes = self._all
        while True:
            first = next(iter(homes))
            account, at = homes[first]
            if len(homes) <= MOST_HOMES and now - at < KEPT_MS:
                self._quiet_at = at + KEPT_MS  # the others were used later
                return
            del homes[first]
            self._leave(account)

    def _leave(self, account: str) -> None:
        if self.numbers[account] == 1:
            del self.numbers[account]
        else:
            self.numbers[account] -= 1

    def export(self) -> list[Home]:
        return [(conversation, account, at) for conversation, (account, at) in self._all.items()]

    def restore(self, homes: Iterable[Home]) -> None:
        for conversation, account, at in homes:
            self._all[conversation] = (account, at)
            self.numbers[account] = self.numbers.get(account, 0) + 1
