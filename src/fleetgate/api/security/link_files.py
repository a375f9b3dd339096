"""The small HTML files by which `fleetgate open` hands a one-time link to a browser.

Every user of a machine can read command lines, so a browser is given the path of a file that only its owner can read.
The name of the file is a hash of the code in it: the service knows which one to remove when the code was used.
"""

from __future__ import annotations

import os
from hashlib import sha256
from html import escape
from time import time

from fleetgate.api.security.sessions import CODE_S
from fleetgate.core.errors import FleetgateError
from fleetgate.log.store_files import remove_file

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Fleetgate</title>
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={url}">
<p><a href="{url}">Open the Fleetgate dashboard</a></p>
</html>
"""


class NoLinkFile(FleetgateError):
    """The file cannot be made so that only its owner can read it."""

    exit_code = 73  # EX_CANTCREAT


def write_link_file(folder: str, url: str, code: str) -> str:
    """The path of a file that leads to `url`, in the state folder `folder`. NoLinkFile."""
    path = _path(folder, code)
    own = os.path.dirname(path)
    try:
        _make_private(own, folder)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
            os.write(fd, _PAGE.format(url=escape(url)).encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise NoLinkFile(f"{own} cannot be used: {error.strerror}; `fleetgate open --print` prints the link") from error
    return path


def remove_link_file(folder: str, code: str) -> None:
    """The code was used."""
    remove_file(_path(folder, code))


def remove_old_link_files(folder: str) -> None:
    """Those whose codes are too old to be used."""
    own = os.path.dirname(_path(folder, ""))
    try:
        with os.scandir(own) as entries:
            old = [each.path for each in entries if each.stat(follow_symlinks=False).st_mtime < time() - CODE_S]
    except OSError:
        return
    for path in old:
        remove_file(path)


def _path(folder: str, code: str) -> str:
    return f"{folder}/open/{sha256(code.encode()).hexdigest()[:32]}.html"


def _make_private(own: str, folder: str) -> None:
    """A folder that only its owner can enter. In a shared state folder another member may have made it first."""
    try:
        os.mkdir(own, 0o700)
        if os.geteuid() == 0:  # root opens the dashboard of another user
            owner = os.stat(folder)
            os.chown(own, owner.st_uid, owner.st_gid)
    except FileExistsError:
        pass
    found = os.lstat(own)
    expected = (os.geteuid(), os.stat(folder).st_uid) if os.geteuid() == 0 else (os.geteuid(),)
    if found.st_uid not in expected or found.st_mode & 0o077 or not os.path.isdir(own) or os.path.islink(own):
        raise NoLinkFile(
            f"{own} must be a folder of your own that no other user can enter (mode 0700): remove it and try again; "
            "or `fleetgate open --print` prints the link"
        )
