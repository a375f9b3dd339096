"""The text of a shim, and of the program with which shims start Fleetgate.

A shim is a script for `sh`, so that it works without Python. Its steps:

1. Find the real program: the first on PATH that is not a shim. So it is found after an upgrade, too.
2. For `--version` and the like, start it at once.
3. Start Fleetgate with the Python that it was installed with; if that is gone, with that of the `fleetgate` on PATH.
4. If there is none, start the real program.

Each step replaces the process by the next (`exec`): signals, job control and exit codes are those of `fleetgate run`.
Python gets `-E`: variables such as PYTHONPATH are meant for the user's own programs.
"""

from __future__ import annotations

import shlex

_MARK = b"# A shim of Fleetgate: it starts "
_START_BYTES = 512

_SHIM = """\
#!/bin/sh
# A shim of Fleetgate: it starts {name} under `fleetgate run`, so that every session is counted.
# `fleetgate shim uninstall {name}` removes it. To start {name} once without a slot: FLEETGATE_BYPASS=1 {name}
name={quoted_name}
shim={shim}
start={start}
python={python}
real={real}

case ":$FLEETGATE_SHIMS:" in
*":$0:"*) ;;
*) export FLEETGATE_SHIMS="$shim:$0${{FLEETGATE_SHIMS:+:$FLEETGATE_SHIMS}}" ;;
esac
IFS=:
set -f
for folder in $PATH; do
    case $folder in /*) ;; *) continue ;; esac
    found=${{folder%/}}/$name
    if [ -f "$found" ] && [ -x "$found" ] && ! [ "$found" -ef "$shim" ]; then
        case ":$FLEETGATE_SHIMS:" in *":$found:"*) continue ;; esac
        real=$found
        break
    fi
done
unset IFS
set +f
if ! [ -x "$real" ]; then
    echo "fleetgate: $name: not found; this is only its shim, $shim (to remove it: fleetgate shim uninstall $name)" >&2
    exit 127
fi

case "${{1-}}" in
{flags}) exec "$real" "$@" ;;
esac

works() {{ [ -x "$python" ] && "$python" -I -S -c '' 2>/dev/null; }}

if ! works; then
    python=
    if found=$(command -v fleetgate 2>/dev/null) && [ -r "$found" ]; then
        IFS= read -r python <"$found"
        python=${{python#'#!'}}
        case $python in */python*) ;; *) python= ;; esac
    fi
fi
if [ -r "$start" ] && works; then
    exec "$python" -E -P "$start" "$real" "$@"
fi
echo "fleetgate: not installed, or it cannot start: $name runs without a slot (to remove its shim: rm $shim)" >&2
exec "$real" "$@"
"""

# Named `fleetgate`, so that listings of processes, and the census, know what it is.
START = '''\
"""Starts an agent under Fleetgate for its shim; without Fleetgate, if that fails before the agent has started."""

import os
import sys

try:
    from fleetgate.cli.main import main

    main(["run", "--shim", "--", *sys.argv[1:]])
except KeyboardInterrupt:
    os._exit(130)
except Exception as error:
    child = getattr(sys.modules.get("fleetgate.runner.child"), "Child", None)
    if getattr(child, "started", 0):
        raise
    print(f"fleetgate: cannot start ({error}): {os.path.basename(sys.argv[1])} runs without a slot", file=sys.stderr)
    sys.stderr.flush()
    os.execv(sys.argv[1], sys.argv[1:])
'''


def shim_text(name: str, shim: str, start: str, python: str, real: str, flags: tuple[str, ...]) -> str:
    """The shim of a program, for one folder and one installation."""
    return _SHIM.format(
        name=name,
        quoted_name=shlex.quote(name),
        shim=shlex.quote(shim),
        start=shlex.quote(start),
        python=shlex.quote(python),
        real=shlex.quote(real),
        flags=" | ".join(map(shlex.quote, flags)),
    )


def is_shim(path: str) -> bool:
    """Whether a file is a shim of Fleetgate, of any folder and any installation."""
    try:
        with open(path, "rb") as file:
            return _MARK in file.read(_START_BYTES)
    except OSError:
        return False


def same_text(path: str, text: str) -> bool:
    """Whether a file has exactly this content."""
    return _text(path) == text


def is_current(path: str, text: str) -> bool:
    """Whether a shim does what this text does. Where the real program was last time is only a last resort."""
    lines, wanted = (
        [line for line in each.splitlines() if not line.startswith("real=/")] for each in (_text(path), text)
    )
    return lines == wanted


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
