"""Transports for httpx, with which the SDKs of OpenAI, Anthropic and others wait for a slot before every model call.

    with fleetgate.sync.open_gate() as gate:
        http = anthropic.DefaultHttpxClient(transport=fleetgate.httpx.Transport(gate))
        client = anthropic.Anthropic(http_client=http)

`gated_call.py` is one call under its lease, `transports.py` the transports, `streams.py` the bodies that they return.
They work with the packages `httpx` and `httpx2`: whichever sends the first request. Neither is needed to import this.
"""

from __future__ import annotations

from fleetgate.httpx.transports import AsyncTransport, Transport

__all__ = ["AsyncTransport", "Transport"]
