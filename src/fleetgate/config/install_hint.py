"""The command that adds an extra to this copy of Fleetgate, whichever tool installed it.

Packaging tools leave records: `direct_url.json` says which folder or URL was installed, `INSTALLER` whether pip or uv
did it, and pipx and uv tool each leave a file in the environment that they made. Fleetgate is not published on a
package index, so a command never names it there.
"""

from __future__ import annotations

import os
import shlex
import sys

from fleetgate.core.errors import FleetgateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import Distribution


class NotInstalled(FleetgateError):
    """An extra that a command needs and that is not installed."""

    exit_code = 69

    def __init__(self, what: str, extra: str, error: ModuleNotFoundError) -> None:
        super().__init__(f"{what} needs the `{extra}` extra ({error.name} is not installed): {install_command(extra)}")


def install_command(extra: str, installed: Distribution | None = None, prefix: str = sys.prefix) -> str:
    """What to type to install an extra, for example `pipx install --force '/home/ann/fleetgate[serve]'`."""
    source, is_editable = _source(installed or _this_copy())
    what = shlex.quote(f"{source or '.'}[{extra}]" if "://" not in source else f"fleetgate[{extra}] @ {source}")
    where = "" if source else " (in the folder of your clone)"
    if os.path.exists(os.path.join(prefix, "pipx_metadata.json")):
        return f"pipx install --force {'--editable ' if is_editable else ''}{what}{where}"
    if os.path.exists(os.path.join(prefix, "uv-receipt.toml")):
        return f"uv tool install --force {'--editable ' if is_editable else ''}{what}{where}"
    python = shlex.quote(os.path.join(prefix, "bin", "python") if prefix != sys.base_prefix else sys.executable)
    option = "-e " if is_editable else ""
    if _installer(installed or _this_copy()) == "uv":
        return f"uv pip install --python {python} {option}{what}{where}"
    is_active = os.environ.get("VIRTUAL_ENV") == prefix
    return f"{'pip' if is_active else f'{python} -m pip'} install {option}{what}{where}"


def _this_copy() -> Distribution | None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("fleetgate")
    except PackageNotFoundError:  # run from its sources, without being installed
        return None


def _installer(installed: Distribution | None) -> str:
    return (installed.read_text("INSTALLER") or "").strip() if installed is not None else ""


def _source(installed: Distribution | None) -> tuple[str, bool]:
    """The folder or the URL that this copy was installed from, "" if unknown; and whether it runs from there."""
    import json
    from urllib.parse import unquote, urlsplit

    try:
        record = json.loads((installed.read_text("direct_url.json") or "{}") if installed is not None else "{}")
        url, details = str(record.get("url", "")), record.get("dir_info")
    except (ValueError, AttributeError):
        return "", False
    if "vcs_info" in record:
        return f"{record['vcs_info'].get('vcs', 'git')}+{url}", False
    folder = unquote(urlsplit(url).path) if url.startswith("file://") and details is not None else ""
    is_editable = bool(details and details.get("editable"))
    return (folder, is_editable) if os.path.isdir(folder) else ("", False)
