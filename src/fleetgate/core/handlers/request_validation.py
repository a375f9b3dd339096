"""Validation of requests: a request that can never be admitted raises before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import CLASSES, Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.handlers.cap_validation import check_cap
from fleetgate.core.model_names import KINDS, parse_model, parse_selector, shown
from fleetgate.core.queue.admission import Admission
from fleetgate.core.queue.order import MAX_PRIORITY
from fleetgate.core.queue.queue import Queue
from fleetgate.core.state.state import State

MOST_RENEW_MS: Final = 86_400_000


class RequestValidator:
    """Checks the requests of one state. A spec is checked once, and again after a change of caps."""

    def __init__(self, state: State, admission: Admission, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._admission = admission
        self._record = record

    def valid_queue(self, command: cmd.Acquire, now: int) -> Queue:
        """The queue for this request; selectors that its environment caps are counted from now on.

        Raises BadRequest or BadName when the request can never be admitted.
        """
        if command.priority and not -MAX_PRIORITY <= command.priority <= MAX_PRIORITY:
            raise BadRequest(f"priority {command.priority}: valid is -{MAX_PRIORITY} to {MAX_PRIORITY}")
        if command.expires_ms < 0:
            raise BadRequest(f"expires after {command.expires_ms} ms: valid is 1 or more, or 0 for the default of 24 h")
        if command.renew_ms and not 0 < command.renew_ms <= MOST_RENEW_MS:
            raise BadRequest(f"renewed every {command.renew_ms} ms: valid is 1 to {MOST_RENEW_MS}, or 0 for never")
        state, spec = self._state, command.spec
        queue = state.queues.get(spec)
        if queue is None or not queue.valid:
            self._check_spec(spec)
            for text, _ in spec.caps:
                if not state.rules.counts(spec.kind, text):
                    self._record(ev.SelectorSeen(spec.kind, text))
            if state.changed_queues or state.changed_pools:
                self._admission.admit_waiting(now)
            queue = state.queue(spec)
            queue.valid = True
        return queue

    def _check_spec(self, spec: Spec) -> None:
        if spec.kind not in KINDS:
            raise BadRequest(f"kind {shown(spec.kind)}: valid are {' and '.join(KINDS)}")
        if not 1 <= spec.slots <= 10_000:
            raise BadRequest(f"{spec.slots} slots: valid is 1 to 10000")
        if spec.work_class not in CLASSES:
            raise BadRequest(f"class {shown(spec.work_class)}: valid are {', '.join(CLASSES)}")
        for text in (*spec.models, *(f"provider@{account}/model" for account in spec.accounts)):
            parse_model(text)
        for text, cap in spec.caps:
            parse_selector(text)
            check_cap(cap, text)
        for family, cap in spec.family_caps:
            check_cap(cap, family)
        self._check_possible(spec)

    def _check_possible(self, spec: Spec) -> None:
        """Raise when no candidate could be admitted even by empty pools."""
        too_small: tuple[str, int] | None = None
        for text in self._state.accounts.expand(spec.models, spec.accounts) or ("",):
            needs = self._state.rules.needs(spec, parse_model(text) if text else None)
            too_small = next(((need.pool, need.most) for need in needs if spec.slots > need.most), None)
            if too_small is None:
                return
        assert too_small is not None
        pool, most = too_small
        raise BadRequest(f"needs {spec.slots} slots of {pool}, whose cap is {most}: ask for fewer or raise the cap")
