"""What the agents report about their own usage: a file for each agent, loaded only once the agent is running.

| file | what is in it |
| --- | --- |
| `claude.py`, `codex.py`, `opencode.py`, `gemini.py`, `aider.py` | the records of one agent each |
| `records.py` | the base class |
| `reports.py` | reports of usage, and their sum |
| `session_files.py` | the reports in an agent's session files, since a run began |
"""

from __future__ import annotations

from importlib import import_module

from fleetgate.signals.agents.agent import Agent
from fleetgate.signals.agents.detect import KNOWN
from fleetgate.signals.agents.usage.records import UsageRecords


def records_of(agent: Agent) -> UsageRecords:
    """Where an agent reports its usage; nowhere, of a command that is not known."""
    if agent.name not in KNOWN:
        return UsageRecords(agent)
    found: type[UsageRecords] = import_module(f"fleetgate.signals.agents.usage.{agent.name}").RECORDS
    return found(agent)
