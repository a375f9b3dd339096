"""Everything about the package is in pyproject.toml; this is only for HEADGATE_COMPILE=1.

Then the parts of the core that every decision goes through, and the simulator, are compiled to C by mypyc: the
same code, two to three times as fast (docs/decisions/0018). It needs mypy and a C compiler.
"""

import os

from setuptools import setup

# What has no msgspec.Struct in it, which mypyc cannot compile, and is on the way of most decisions.
COMPILED = (
    "core/engine.py",
    "core/entering.py",
    "core/holding.py",
    "core/limits/adapt.py",
    "core/line.py",
    "core/order.py",
    "core/pool_events.py",
    "core/pools.py",
    "core/reasons.py",
    "core/settling.py",
    "core/state.py",
    "core/throttling.py",
    "core/timers.py",
    "simulate/draws.py",
    "simulate/provider.py",
    "simulate/world.py",
)

modules = []
if os.environ.get("HEADGATE_COMPILE") == "1":
    from mypyc.build import mypycify

    # `make check` is where types are checked, with everything installed; here only what is compiled is looked at.
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
    modules = mypycify([*options, *(f"src/headgate/{path}" for path in COMPILED)], opt_level="3")

setup(ext_modules=modules)
