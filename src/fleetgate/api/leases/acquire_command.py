"""From the body of a request for a slot to the engine's command."""

from __future__ import annotations

from datetime import UTC

from fleetgate.api.bodies import AcquireBody
from fleetgate.api.security.caller import Caller
from fleetgate.core import commands as cmd
from fleetgate.core.accounts.homes import MOST_TEXT
from fleetgate.core.entities import Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import read_model, shown
from fleetgate.gate.acquire_command import acquire_command
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.present.log_time import offset_ms
from fleetgate.present.wall_time import parse_since_ms
from fleetgate.signals.redaction import shown_text


def read_acquire(gate: ServiceGate, body: AcquireBody, caller: Caller, client: str) -> cmd.Acquire:
    queue = body.wait_s > 0 if body.queue is None else body.queue
    since = None
    if body.since is not None and caller.max_priority is None:
        text = body.since if isinstance(body.since, str) else repr(body.since)
        since = parse_since_ms(text, "since", zone=UTC) - offset_ms(gate)
    return acquire_command(
        gate.core,
        _spec(gate, body, caller),
        ident=body.id or "",
        wait=queue or body.wait_s > 0,
        since=since,
        priority=caller.priority_for(body.priority),
        expires_ms=0 if body.expires_s is None else max(int(body.expires_s * 1000), 1),
        command=_plain(shown_text(body.command)),
        key=_plain(body.key),
        role=_plain(body.role),
        name=_plain(shown_text(body.name)).strip(),
        client=_plain(body.client) or client,
        conversation=_conversation(body, caller),
        renew_ms=int(body.renew_within_s * 1000),
    )


def _conversation(body: AcquireBody, caller: Caller) -> str:
    """What the request belongs to. Those of a client for one project are its own: none moves that of another."""
    text = _plain(body.conversation)
    return f"{caller.project}/{text}"[:MOST_TEXT] if text and caller.project else text


def _spec(gate: ServiceGate, body: AcquireBody, caller: Caller) -> Spec:
    models = body.models or gate.settings.models
    project = caller.project_for(body.project) or "default"
    if not project.isprintable() or project != project.strip():
        raise BadRequest(f"project {shown(project)}: valid is up to 100 printable characters")
    return gate.core.acquisition.spec(
        *(models, body.kind, body.slots, project, body.any, read_model),
        work_class=caller.class_for(body.work_class),
        access_key=caller.named_key,
    )


def _plain(text: str) -> str:
    """One line that cannot move a cursor."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
