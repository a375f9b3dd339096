"""What can be promised of a pool whose limit is learned (`adapt`), without knowing anything that was learned.

A part of the model (model.py), by events alone. A call's level is known within bounds: at least the slots in flight and
its own, at most those and all that were given back within the longest lag. So of some calls it is certain that their
level is not proven: there is at most one of them in flight. Refusals of calls that were in flight when an incident
began only fit the limit. How a pool is paused, and who is counted, is as in any other (model.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

GRACE_MS = 2_000  # without a refusal for so long, a call was accepted
LAG_MS = 5_000  # nothing cools down for longer: 3 s by what is learned, 5 s by what the rules of the test say
CUTS = ("drop", "exact", "again")
MEANINGS = (*CUTS, "fit", "probe", "lag", "alone")


@dataclass
class Sent:
    """A call in flight: when it was sent, and its level at least and at most."""

    at: int
    least: int
    most: int


@dataclass
class Learned:
    """What is known of one pool."""

    undecided: dict[str, Sent] = field(default_factory=dict)
    proven: int = 0  # no level above it was proven
    incident: set[str] = field(default_factory=set)  # who was in flight when the last incident began
    unknown: set[str] = field(default_factory=set)  # who was in flight when a rule changed: perhaps all was forgotten
    given_back: list[tuple[int, int]] = field(default_factory=list)  # (when, slots)

    def may_cool(self, now: int) -> int:
        """The most slots that may be cooling down."""
        self.given_back = [(at, slots) for at, slots in self.given_back if at > now - LAG_MS]
        return sum(slots for _, slots in self.given_back)

    def sent(self, ident: str, in_flight: int, slots: int, now: int) -> None:
        """P4: at most one call in flight is above what was proven."""
        for other, call in list(self.undecided.items()):
            if now >= call.at + GRACE_MS:
                self.accepted(other)
        least = in_flight + slots
        self.undecided[ident] = Sent(now, least, least + self.may_cool(now))
        self.incident.discard(ident)
        self.unknown.discard(ident)
        bold = [other for other, call in self.undecided.items() if call.least > self.proven]
        assert len(bold) <= 1, f"P4: more than one unproven call is in flight: {bold}"

    def accepted(self, ident: str) -> None:
        call = self.undecided.pop(ident, None)
        if call is not None:
            self.proven = max(self.proven, call.most)

    def ended(self, ident: str, slots: int, well: bool, now: int) -> None:
        if well or (ident in self.undecided and now >= self.undecided[ident].at + GRACE_MS):
            self.accepted(ident)
        self.undecided.pop(ident, None)
        self.given_back.append((now, slots))

    def refused(self, ident: str, why: str, in_flight: set[str]) -> None:
        """One incident cuts once: whoever was in flight when it began does not begin another."""
        assert why in MEANINGS
        if why == "fit":
            assert ident in self.incident | self.unknown, f"{ident} was sent after the last incident"
            return
        assert ident not in self.incident - self.unknown, f"P4: {ident} began a second incident ({why})"
        self.incident, self.unknown = in_flight, set()
        self.undecided.clear()

    def rules_changed(self, in_flight: set[str]) -> None:
        for ident in list(self.undecided):
            self.accepted(ident)
        self.unknown = in_flight
