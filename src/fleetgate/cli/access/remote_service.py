"""A service elsewhere, over HTTP, with the access key of FLEETGATE_KEY, or the token of FLEETGATE_TOKEN."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from fleetgate.core.errors import BadRequest, FleetgateError, NotFound
from fleetgate.core.model_names import shown

_PATIENCE_S = 30.0
_MOST_BYTES = 16 << 20


class ServiceAway(FleetgateError):
    """The service cannot be reached, or does not answer as one."""

    exit_code = 69


class NoSuchThing(NotFound):
    """What a request names is not there; the sentence is the service's own."""


class ServiceRefused(FleetgateError):
    """The service refused a request; the sentence is its own."""

    exit_code = 77  # EX_NOPERM


def call(url: str, method: str, path: str, body: object = None) -> Any:
    """Send a request and return what the service answers. The token is in no argument, and in no message."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.parse import urlsplit

    variable = "FLEETGATE_KEY" if os.environ.get("FLEETGATE_KEY") else "FLEETGATE_TOKEN"
    token = os.environ.get(variable, "")
    if not token:
        raise BadRequest(
            "neither FLEETGATE_KEY, for an access key, nor FLEETGATE_TOKEN, for the service's token, is set"
        )
    if not token.isascii() or not token.isprintable():
        raise BadRequest(f"{variable} is not a token: valid are printable characters")
    try:
        at = urlsplit(url)
        port = at.port
    except ValueError:
        raise BadRequest(_not_a_service(url)) from None
    if at.scheme not in ("http", "https") or not at.hostname or at.username is not None or at.query or at.fragment:
        raise BadRequest(_not_a_service(url))
    made = HTTPSConnection if at.scheme == "https" else HTTPConnection
    connection = made(at.hostname, port, timeout=_PATIENCE_S)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.request(
            method, at.path.rstrip("/") + path, b"" if body is None else msgspec.json.encode(body), headers
        )
        response = connection.getresponse()
        answer = msgspec.json.decode(response.read(_MOST_BYTES), type=dict[str, Any])
    except (OSError, HTTPException, msgspec.MsgspecError) as error:
        raise ServiceAway(f"the service at {at.scheme}://{at.netloc} does not answer as one: {error}") from error
    finally:
        connection.close()
    if response.status in (401, 403):
        raise ServiceRefused(f"the service at {at.netloc} refused: {answer.get('error')}")
    if response.status >= 500:
        raise ServiceAway(f"the service at {at.netloc} failed: {answer.get('error')}")
    if response.status == 404:
        raise NoSuchThing(str(answer.get("error")))
    if response.status >= 400:
        raise BadRequest(str(answer.get("error")))
    return answer


def _not_a_service(url: str) -> str:
    return f"--service {shown(url)}: valid is an http or https URL, for example https://gate.example.org"
