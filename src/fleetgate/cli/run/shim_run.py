"""`fleetgate run --shim`: an agent that its user started by name, through a shim (docs/commands/shim.md).

The rule: the agent runs as its user typed it, and it always runs. It gets no slot of its own inside another run, and
none for `--version` and the like. If Fleetgate itself fails before the agent starts, the agent runs without a slot.
"""

from __future__ import annotations

import os

from fleetgate.cli.run.run_options import RunOptions
from fleetgate.cli.run.wait_progress import say
from fleetgate.core.errors import BadRequest
from fleetgate.runner.child import CannotRun, Child, become
from fleetgate.signals.agents import calls_no_model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def run_shim(options: RunOptions, run: Callable[[RunOptions], int]) -> int:
    """Run the command as a shim does; the exit code of the agent, if this process is still needed."""
    if calls_no_model(options.command):
        become(options.command, os.environ)
    options.fail_open = True
    try:
        inside = _is_inside_run()
        code = -1 if inside else run(options)
    except (BadRequest, CannotRun):
        raise
    except Exception as error:  # whatever it is: its user wants the agent
        if Child.started:
            raise
        say(f"{error or type(error).__name__}: {os.path.basename(options.command[0])} runs without a slot")
        inside = True
    if inside:
        become(options.command, os.environ)
    return code


def _is_inside_run() -> bool:
    """Whether the run that the environment names is alive: its slot is this agent's, too.

    A terminal multiplexer may keep the variables of a run that ended long ago.
    """
    from fleetgate.cli.run.nested_run import VARIABLE

    named = os.environ.get(VARIABLE, "")
    if not named:
        return False
    from contextlib import closing

    from fleetgate.cli.open_gate import open_gate
    from fleetgate.gate.liveness import process_identity

    with closing(open_gate(configured=False)) as gate:
        lease = gate.read().leases.get(named)
    return lease is not None and not process_identity.is_gone(lease.lives_with)
