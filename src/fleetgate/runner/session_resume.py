"""An agent's session, resumed and remembered: `--session KEY` of `run` and `submit` (rule R9).

The session is the one that the last run with this key reported, on the same host, by the same agent, with the same
provider and account. A session that no longer exists is forgotten, and the agent is started once more without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.gate import agent_sessions
from fleetgate.signals.agents.detect import find_program

if TYPE_CHECKING:
    from fleetgate.core.entities import Lease
    from fleetgate.gate.slots.slot_gate import SlotGate
    from fleetgate.log.protocol import SideWrite
    from fleetgate.runner.supervisor import ProcessEnd
    from fleetgate.signals.agents.agent import Agent
    from fleetgate.signals.classify_process import Reader

PULSE = "pulse"  # a role that starts afresh each time
# How an agent is made to print its session's id.
_PRINTED = {"claude": "--output-format json", "opencode": "--format json", "codex": "--json"}


class SessionResume:
    """The session of one agent under one lease."""

    def __init__(self, gate: SlotGate, lease: Lease, agent: Agent, *, fresh: bool) -> None:
        self.resumed = ""  # the id that the agent was told to resume
        self.stale = False  # it said that there is no such session
        self.changed = False  # another one is remembered now than before, or none any more
        self.told = ""  # what its user should know about it
        self._agent = agent
        self._key = lease.ticket.session
        self._pulse = lease.ticket.role == PULSE
        self._where = agent_sessions.place(gate.host, agent.name, lease.model, self._key)
        self._known = "" if fresh or self._pulse else agent_sessions.find(gate, self._where)

    def resuming(self, command: list[str]) -> list[str]:
        """The command with the arguments that resume; as it is where there is nothing to resume, or it says what."""
        name, at = find_program(command)
        if not self._known or name != self._agent.name:
            return command
        arguments = self._agent.resumed(command[at + 1 :], self._known)
        if arguments is None:
            return command
        self.resumed = self._known
        return [*command[: at + 1], *arguments]

    def ended(self, reader: Reader | None, end: ProcessEnd) -> list[SideWrite]:
        """What is to be remembered or forgotten, now that the agent has ended."""
        writes = [] if reader is None else self._writes(reader, end)
        self.told = self._sentence(reader, end, bool(writes))
        return writes

    def _writes(self, reader: Reader, end: ProcessEnd) -> list[SideWrite]:
        if end.exit_code and reader.stale_session:
            self.stale = self.changed = bool(self.resumed)
            return [agent_sessions.forget(self._where)] if self.stale else []
        session = reader.session if self._agent.resumes and not self._pulse else ""
        self.changed = bool(session) and session != self.resumed
        return [agent_sessions.remember(self._where, session)] if session else []

    def _sentence(self, reader: Reader | None, end: ProcessEnd, remembered: bool) -> str:
        agent, key = self._agent, self._key
        if self.stale:
            return f"{agent.name} has no session {self.resumed} any more: once more, without it"
        if not agent.resumes:
            known = ", ".join(sorted(_PRINTED))
            return f"--session {key}: nothing can be resumed; the sessions that are known are those of {known}"
        if reader is None and self.resumed and end.exit_code:
            from shlex import quote

            return f"it was to resume {self.resumed}; if that is gone: fleetgate session clear {quote(key)}"
        if self._pulse or remembered or end.exit_code != 0:
            return ""
        if reader is None:
            return f"--session {key}: a terminal is not read, so no session was remembered"
        return f"--session {key}: {agent.name} printed no session; it does with {_PRINTED[agent.name]}"
