"""`fleetgate open`: a one-time link to the dashboard, for a browser ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from fleetgate.cli.click_helpers import json_option, tell
from fleetgate.cli.read_only_gate import note, say_json
from fleetgate.config.paths import state_folder
from fleetgate.core.errors import FleetgateError

if TYPE_CHECKING:
    from http.client import HTTPConnection


class NotServed(FleetgateError):
    """No service can be opened."""

    exit_code = 69


_PATIENCE_S = 10.0
_SECRET = "this link is a secret: it signs in the first browser that opens it, within five minutes"
_NOT_YET = (
    "the browser has not signed in yet. If it cannot open the file (a browser from snap or flatpak may not), "
    "type `fleetgate open --print` and paste the link"
)


@click.command(short_help="Open the dashboard in a browser.")
@click.option("--print", "only_print", is_flag=True, help="Print the link and open nothing. The link is a secret.")
@click.option("--share", is_flag=True, help="Print a link for another user, or to use behind a reverse proxy.")
@json_option
def command(only_print: bool, share: bool, as_json: bool) -> None:
    """Open the dashboard of the running service in a browser, signed in.

    The browser gets a file that only you can read. It leads to a link that signs in one browser, once, within five
    minutes. --print prints that link instead, for a browser that cannot read your files. The link is for you: other
    users of this machine cannot use it. --share prints one that they can.

    \b
    fleetgate open
    fleetgate open --print
    fleetgate open --share

    Exit codes: 0; 69 when no service is running, its token cannot be read, or no browser can be started; 73 when the
    file cannot be written.
    """
    link = _link(share)
    if as_json:
        say_json(link)
    elif only_print or share:
        tell(str(link["url"]))
        note(_SECRET)
    else:
        _open(str(link["url"]))


def _open(url: str) -> None:
    """Hand the link to a browser, in a file: every user of this machine can read its command line."""
    import os
    import webbrowser
    from pathlib import Path
    from time import monotonic, sleep

    from fleetgate.api.security.link_files import remove_link_file, remove_old_link_files, write_link_file

    folder, code = state_folder(), url.partition("#code=")[2]
    remove_old_link_files(folder)
    path = write_link_file(folder, url, code)
    if not webbrowser.open(Path(path).absolute().as_uri()):
        remove_link_file(folder, code)
        raise NotServed("no browser could be started: `fleetgate open --print` prints a link to open yourself")
    until = monotonic() + _PATIENCE_S
    while os.path.exists(path):  # the service removes it when the browser has signed in
        if monotonic() > until:
            note(_NOT_YET)
            return
        sleep(0.1)
    note("the browser is signed in")


def _link(share: bool) -> dict[str, object]:
    from http.client import HTTPException

    from fleetgate.api.security.tokens import find_token
    from fleetgate.gate.serving.service_address import read_address

    folder = state_folder()
    address = read_address(folder)
    if address is None:
        raise NotServed("no service is running with this state folder: start one with `fleetgate serve`")
    token = find_token(folder)
    if token is None:
        raise NotServed(f"there is no token in {folder}: is FLEETGATE_TOKEN set where the service runs?")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    connection = _connection(host, address.port, tls=address.url.startswith("https:"))
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/login-links", msgspec.json.encode({"shared": share}), headers)
        response = connection.getresponse()
        answer = msgspec.json.decode(response.read(65_536), type=dict[str, object])
    except (OSError, HTTPException, msgspec.MsgspecError) as error:
        raise NotServed(f"the service at {address.url} does not answer: {error}") from error
    finally:
        connection.close()
    if "url" not in answer:
        raise NotServed(f"the service at {address.url} refused: {answer.get('error')}")
    return answer


def _connection(host: str, port: int, *, tls: bool) -> HTTPConnection:
    """To the service. With TLS, it has to show the certificate of the config: any name may be in that."""
    import http.client

    if not tls:
        return http.client.HTTPConnection(host, port, timeout=5)
    import os
    import ssl

    from fleetgate.cli.open_gate import load_config

    loaded = load_config()
    certificate = loaded.settings.serve.tls_cert if loaded is not None else ""
    try:
        context = ssl.create_default_context(cafile=os.path.expanduser(certificate) or None)
    except OSError as error:
        raise NotServed(f"tls_cert {certificate} in [serve] of the config cannot be read: {error}") from error
    if certificate:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(host, port, timeout=5, context=context)
