"""The limit of open files of a process that many others connect to."""

from __future__ import annotations

import resource

_MOST_FILES = 65_536


def raise_open_files() -> None:
    """As many open files as this process may have: the limit that programs start with is often a small one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # macOS has a limit of its own
