"""Whether this installation's core was compiled to C (docs/decisions/0018). It decides the same either way."""

from __future__ import annotations

from fleetgate.core import engine

COMPILED = not (engine.__file__ or "").endswith(".py")
