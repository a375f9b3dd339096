"""The command line.

Where `typing_extensions` is installed, msgspec imports it, which takes longer than all of Fleetgate's own modules and
brings nothing that Python 3.11 does not have (docs/decisions/0002). So it is out of sight while msgspec is loaded.
"""

import sys

if "msgspec" not in sys.modules and "typing_extensions" not in sys.modules:
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]
