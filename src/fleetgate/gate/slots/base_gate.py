"""What every gate of one process has: its settings and identity, and the answers of one that knows nothing.

All three are built on it. The one through the node (node_gate.py) and the one without a store (fail_open_gate.py) have
no more than that while there is nothing that they could ask.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from fleetgate.config.settings import Settings
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.providers.credentials import Credentials, SideCredentials
from fleetgate.gate.providers.usage_questions import UsageSources

if TYPE_CHECKING:
    from fleetgate.config.file import Loaded
    from fleetgate.core.entities import Lease
    from fleetgate.core.queue.positions import TicketView


class BaseSlotGate:
    """The part of a SlotGate that needs no store."""

    def __init__(self, loaded: Loaded | None, folder: str, side_values: SideCredentials | None = None) -> None:
        self.loaded = loaded
        self.settings = loaded.settings if loaded is not None else Settings()
        self.folder = folder  # the state folder; "" where there is none
        self.host = process_identity.host_name()
        self.me = process_identity.this_process()
        self.address = ""
        self.unapplied: list[str] = []
        self.lock_wait: Callable[[], AbstractContextManager[None]] = nullcontext
        self.credentials = Credentials(self.settings, side_values or self)
        self.usage = UsageSources(self.settings)

    def lock_owner(self) -> int | None:
        return None

    def view(self, ident: str) -> TicketView | None:
        return None

    def is_hopeless(self, view: TicketView) -> bool:
        return False

    def backed_off_until(self, model: str) -> int:
        return 0

    def has_other_candidate(self, lease: Lease) -> bool:
        return False

    def cap_selectors(self) -> list[str]:
        return [rule.selector for rule in self.settings.rules if rule.kind == "agents"]

    def is_probe(self, ident: str) -> bool:
        return False

    def side_value(self, table: str, key: str) -> bytes | None:
        return None

    def set_side_value_once(self, table: str, key: str, value: bytes) -> bytes:
        return b""
