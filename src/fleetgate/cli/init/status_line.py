"""The status line of Claude Code: the setting that makes it show `fleetgate statusline`."""

from __future__ import annotations

import json
import os
import shlex

from fleetgate.cli.init.service import program_path
from fleetgate.cli.init.steps import AnyStep, Insertion, NewFile, exact_text
from fleetgate.config.file import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

COMMAND = "statusline"
_ABOUT = "status line of Fleetgate"


def status_line_step(environ: Mapping[str, str]) -> AnyStep | str:
    """The change of Claude Code's settings; or a sentence that says why there is none.

    The text is put right after the first brace, so that everything else in the file stays as it is.
    """
    given = environ.get("CLAUDE_CONFIG_DIR", "")
    path = f"{given if os.path.isabs(given) else environ['HOME'] + '/.claude'}/settings.json"
    setting = {"type": "command", "command": f"{shlex.quote(program_path())} {COMMAND}"}
    if not os.path.lexists(path):
        return NewFile(path=path, text=json.dumps({"statusLine": setting}, indent=2) + "\n")
    whole = exact_text(path)
    try:
        before = json.loads(whole)
    except ValueError:
        return f"{path} is not plain JSON, so the status line is not set there"
    if not isinstance(before, dict) or "statusLine" in before:
        return "" if _is_ours(before) else f"{path} has a status line already, which stays"
    at = whole.index("{") + 1
    text = f'\n  "statusLine": {json.dumps(setting)}{"," if before else ""}'
    assert json.loads(whole[:at] + text + whole[at:]) == {**before, "statusLine": setting}
    return Insertion(path=path, text=text, at=at, about=_ABOUT, seen=digest(whole.encode()))


def _is_ours(settings: object) -> bool:
    line = settings.get("statusLine") if isinstance(settings, dict) else None
    return isinstance(line, dict) and str(line.get("command", "")).endswith(f"fleetgate {COMMAND}")
