"""Who made a change: the commands that are changes, and the events that name their author (rule E3).

The author is written once, into the command, before it is decided (gate/change_author.py). The recorder copies it
into every event of such a command that names an author, so handlers need not.
"""

from __future__ import annotations

from typing import Final

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.access.keys import CreateKey, RemoveKey, RotateKey

CHANGES: Final = frozenset(
    (
        cmd.SetRule,
        cmd.RemoveCap,
        cmd.ResetCap,
        cmd.LoadFile,
        cmd.SetBudget,
        cmd.RemoveBudget,
        cmd.UnsetBudget,
        cmd.ResetBudget,
        cmd.AddBudget,
        cmd.Pause,
        cmd.Resume,
        cmd.Drain,
        cmd.BackOff,
        cmd.EndBackoff,
        cmd.Bump,
        cmd.Cancel,
        cmd.Approve,
        cmd.Reclaim,
        cmd.Stop,
        CreateKey,
        RotateKey,
        RemoveKey,
    )
)

SIGNED: Final = frozenset(
    (
        ev.RuleSet,
        ev.CapRemoved,
        ev.CapReset,
        ev.FileLoaded,
        ev.BudgetSet,
        ev.BudgetRemoved,
        ev.BudgetUnset,
        ev.BudgetReset,
        ev.BudgetAdded,
        ev.Paused,
        ev.Resumed,
        ev.Draining,
        ev.DrainEnded,
        ev.BackedOff,
        ev.BackoffEnded,
        ev.Bumped,
        ev.Cancelled,
        ev.Approved,
        ev.Reclaimed,
        ev.StopRequested,
        ev.KeySet,
        ev.KeyRemoved,
    )
)
