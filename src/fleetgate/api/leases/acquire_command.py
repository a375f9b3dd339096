"""From the body of a request for a slot to the engine's command."""

from __future__ import annotations

from datetime import UTC

from fleetgate.api.bodies import AskBody
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import read_model, shown
from fleetgate.gate.library.lease_handles import checked
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.present.log_time import offset_ms
from fleetgate.present.wall_time import parse_since_ms
from fleetgate.signals.redaction import shown_text

_MOST_SPECS = 1024


class AcquireCommands:
    """Turns bodies into commands; what decides which pools are needed is checked once for each that is different."""

    def __init__(self, gate: ServiceGate) -> None:
        self._gate = gate
        self._specs: dict[object, Spec] = {}

    def command(self, body: AskBody, client: str) -> cmd.Acquire:
        gate = self._gate
        queue = body.wait_s > 0 if body.queue is None else body.queue
        since = None
        if body.since is not None:
            text = body.since if isinstance(body.since, str) else repr(body.since)
            since = parse_since_ms(text, "since", zone=UTC) - offset_ms(gate)
        spec = self._spec(body)
        return cmd.Acquire(
            id=body.id or new_id(),
            spec=spec,
            holder=gate.me,
            wait=queue or body.wait_s > 0,
            since=since,
            priority=body.priority,
            expires_ms=0 if body.expires_s is None else max(int(body.expires_s * 1000), 1),
            wake=gate.address,
            command=_plain(shown_text(body.command)),
            key=_plain(body.key),
            role=_plain(body.role),
            client=_plain(body.client) or client,
            renew_ms=int(body.renew_within_s * 1000),
            asks=gate.can_ask(spec.models),
        )

    def _spec(self, body: AskBody) -> Spec:
        key = (tuple(body.models), body.kind, body.slots, body.project, body.any)
        spec = self._specs.get(key)
        if spec is None:
            models = tuple(str(read_model(model)) for model in body.models) or self._gate.settings.models
            project = body.project or "default"
            if not all(char.isprintable() for char in project) or project != project.strip():
                raise BadRequest(f"project {shown(project)}: valid is up to 100 printable characters")
            spec = checked(Spec(models, body.kind, body.slots, self._gate.host, project, body.any))
            if len(self._specs) >= _MOST_SPECS:
                self._specs.clear()
            if body.models:  # else it is the config's to say, which may change
                self._specs[key] = spec
        return spec


def _plain(text: str) -> str:
    """One line that cannot move a cursor."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
