"""The check of `fleetgate doctor` on shims: whether this shell uses them, and whether they are up to date."""

from __future__ import annotations

import os

from fleetgate.cli.doctor.finding import Finding, Findings
from fleetgate.cli.shims.shim_folder import ShimFolder
from fleetgate.config.errors import ConfigError


def shims() -> Findings:
    """One finding for each shim that has a problem; nothing where there are no shims."""
    try:
        views = ShimFolder(os.environ).views()
    except ConfigError:  # another check reports the environment
        return
    for view in views:
        if view.problem:
            remedy = f"fleetgate shim install {view.name}"
            if not view.is_first:
                remedy = f"open a new terminal; if that does not help: {remedy}"
            yield Finding("warn", f"{view.name}: {view.problem}", remedy)
    if views and not any(view.problem for view in views):
        yield Finding("ok", f"every {', '.join(view.name for view in views)} of this shell is counted")
