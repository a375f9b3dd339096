"""`headgate open`: a one-time link to the dashboard, for a browser (SPEC H5)."""

from __future__ import annotations

import click
import msgspec

from headgate.cli import exits
from headgate.cli.listing import note, say_json
from headgate.cli.targets import json_option, tell
from headgate.config.paths import state_folder
from headgate.core.errors import HeadgateError


class NotServed(HeadgateError):
    """There is no service to open."""

    exit_code = 69


@click.command(short_help="Open the dashboard in a browser.")
@click.option("--print", "only_print", is_flag=True, help="Print the link and open nothing.")
@json_option
def command(only_print: bool, as_json: bool) -> int:
    """Open the dashboard of the service that runs: makes a link that signs one browser in, once, within five minutes.

    \b
    headgate open
    headgate open --print

    Exit: 0; 69 when no service runs, or its token cannot be read.
    """
    link = _link()
    if as_json:
        say_json(link)
        return exits.OK
    tell(str(link["url"]))
    if not only_print:
        import webbrowser

        if not webbrowser.open(str(link["url"])):
            note("no browser could be opened: open the link yourself, within five minutes")
    return exits.OK


def _link() -> dict[str, object]:
    from http.client import HTTPConnection, HTTPException

    from headgate.api.tokens import find_token
    from headgate.gate.address import read_address

    folder = state_folder()
    address = read_address(folder)
    if address is None:
        raise NotServed("no service runs on this state folder: start one with `headgate serve`")
    token = find_token(folder)
    if token is None:
        raise NotServed(f"there is no token in {folder}: is HEADGATE_TOKEN set where the service runs?")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    connection = HTTPConnection(host, address.port, timeout=5)
    try:
        connection.request("POST", "/v1/login-links", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        answer = msgspec.json.decode(response.read(65_536), type=dict[str, object])
    except (OSError, HTTPException, msgspec.MsgspecError) as error:
        raise NotServed(f"the service at {address.url} does not answer: {error}") from error
    finally:
        connection.close()
    if "url" not in answer:
        raise NotServed(f"the service at {address.url} refused: {answer.get('error')}")
    return answer
