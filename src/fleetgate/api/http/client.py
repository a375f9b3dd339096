"""The name of a request's client, for the history."""

from __future__ import annotations

from fleetgate.api.router.route import ApiRequest


def client_of(request: ApiRequest) -> str:
    """The client that made a change."""
    client = request.scope.get("client")
    return request.caller.named(str(client[0]) if client else "")
