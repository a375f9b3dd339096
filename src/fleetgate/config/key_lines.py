"""The line of a key in a valid TOML text, for messages about a problem.

A search, not a parser: each part of the key's path is looked for after the part before it. It finds the usual ways to
write a config file; in an unusual one the line may be that of a table around the key, or of a key with the same name.
"""

from __future__ import annotations

import re

from fleetgate.config.errors import Path


def line_of(path: Path, text: str) -> int:
    """The line of a key, or of the nearest key around it that is found; 0 when there is none."""
    start, end, name = -1, 0, ""
    for depth, part in enumerate(path):
        if isinstance(part, int):
            # The first [[name]] was found as the name itself; the others follow. An array in brackets has none: there
            # each table begins with a brace.
            pattern, times = rf"^[ \t]*\[\[[ \t]*{name}", part
            if re.compile(r"\s*=\s*\[(?:\s|#.*)*\{").match(text, end):
                pattern, times = r"\{", part + 1
        else:
            name = rf"[\"']?{re.escape(part)}[\"']?[ \t]*(?=[=.\]])"
            pattern, times = (r"(?:^|[.{,])[ \t]*" if depth else r"^[ \t[]*") + name, 1
        for _ in range(times):
            if (match := re.compile(pattern, re.MULTILINE).search(text, end)) is None:
                break
            start, end = match.span()
        if pattern == r"\{":
            end = start  # the first key of a table comes right after its brace, and is found by it
    return text.count("\n", 0, start) + 1 if start >= 0 else 0
