"""How Fleetgate starts Python for itself.

With `-P` nothing of the current folder is imported: a `msgspec.py` that lies there is not ours. Not with `-I`, which
would also leave out PYTHONPATH and the user's own site folder, where Fleetgate itself may be installed. What this
Python was started with applies to the other one as well.
"""

from __future__ import annotations

import sys


def python_command(module: str, *words: str) -> list[str]:
    """A command that runs a module of Fleetgate, with the Python that we run in."""
    flags = sys.flags
    options = ["-I"] if flags.isolated else ["-P"]
    if flags.ignore_environment and not flags.isolated:
        options.append("-E")
    if flags.no_user_site and not flags.isolated:
        options.append("-s")
    return [sys.executable, *options, "-m", module, *words]
