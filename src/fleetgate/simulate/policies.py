"""How the limit is set in a simulation, as data (`policies.toml`)."""

from __future__ import annotations

from importlib.resources import files

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fleetgate.core.entities import Rule
from fleetgate.core.errors import NotFound

DEFAULT = ("fixed", "step", "aimd", "adapt", "oracle")


class Plan(Struct, forbid_unknown_fields=True):
    about: str
    on_429: str
    cap: str = "given"
    rival: str = ""  # moves the cap (rivals.py)
    pause_ms: int | None = None  # after a refusal, where the provider does not say how long
    usage_gate: bool = False
    explore: bool = False
    refusals: str | None = None  # what a refused call costs (`Rule.refusals`)
    client_retries: bool = False  # a refused call waits as client libraries do, and asks again
    sees_lag: bool = False  # a slot is free when the provider stops counting it, and not before
    strict_priority: bool = False
    reads_rates: bool = False  # the provider's rates, as its headers report them

    @property
    def hides_refusals(self) -> bool:
        """Whether the engine hears of no refusal: there is no limiter, or it is another program, and nothing pauses."""
        return self.cap == "none" or (bool(self.rival) and self.on_429 == "fixed")

    def rule(self, cap: int) -> Rule:
        no_cooldown = self.sees_lag or bool(self.rival)  # other programs count a slot as free when its call has ended
        cooldown_ms = 0 if no_cooldown else None if self.on_429 == "adapt" else 350
        return Rule(
            "requests",
            "sim",
            cap=cap,
            on_429=self.on_429,
            cooldown_ms=cooldown_ms,
            usage_gate=self.usage_gate,
            explore=self.explore,
            refusals=self.refusals,
            max_hold_ms=0,
        )


def plans() -> dict[str, Plan]:
    """The policies that come with Fleetgate, by name."""
    text = (files("fleetgate.simulate") / "policies.toml").read_text("utf-8")
    return msgspec.toml.decode(text, type=dict[str, Plan])


def plan(name: str, refusals: str | None = None) -> Plan:
    """The policy of this name; `refusals` replaces its price of a refusal, where it learns a limit."""
    known = plans()
    if name not in known:
        raise NotFound(f"no policy {name!r}: there are {', '.join(known)}")
    found = known[name]
    return found if refusals is None or found.on_429 != "adapt" else replace(found, refusals=refusals)
