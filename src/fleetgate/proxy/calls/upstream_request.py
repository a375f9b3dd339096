"""What is sent to a provider for a call: its path, headers and body, with the model and the key of the candidate."""

from __future__ import annotations

from fleetgate.proxy.body_pieces import body_pieces
from fleetgate.proxy.calls.exchange import CallCandidate, Exchange
from fleetgate.proxy.headers import Pairs, header_for, looked_at, without_keys
from fleetgate.proxy.http_client.connection import UpstreamRequest
from fleetgate.proxy.login_identities import of_account
from fleetgate.proxy.request_body import path_with_model, with_model, without_encoding

_HARMLESS = frozenset(("GET", "HEAD", "OPTIONS"))


def upstream_request(exchange: Exchange, candidate: CallCandidate | None) -> UpstreamRequest:
    """The request for a candidate; None: for the provider that the client asks for. ValueError, CannotConnect."""
    upstream, body = exchange.upstream, exchange.body
    path, query, data = exchange.path, exchange.query, body.data
    key = exchange.key if candidate is None else candidate.key
    headers: Pairs = list(exchange.headers.sent) if candidate is None else looked_at(exchange.headers.sent)
    if exchange.early is not None and exchange.early.begun:  # what was begun plainly cannot go on otherwise
        headers = [pair for pair in headers if pair[0] != b"accept-encoding"] + [(b"accept-encoding", b"identity")]
    if candidate is not None and candidate.name:
        if exchange.model_in_path:
            path = path_with_model(path, candidate.name)
        else:
            if exchange.headers.encoding:
                data = without_encoding(data, exchange.headers.encoding) or data
                headers = [pair for pair in headers if pair[0] != b"content-encoding"]
            data = with_model(data, candidate.name, exchange.headers.content_type)
    if candidate is not None and candidate.login:
        headers = of_account(headers, key)
    if key:
        headers.append(header_for(key, upstream.api, upstream.host))
        query = without_keys(query)
    else:
        headers += exchange.headers.keys.items()
    if body.is_small(data):
        return upstream.request(exchange.method, path, query, headers, data)
    if body.kept:
        headers.append((b"content-length", b"%d" % len(data)))
    elif exchange.headers.length is not None:
        headers.append((b"content-length", exchange.headers.length))
    return upstream.request(exchange.method, path, query, headers, b"", body_pieces(body, data))


def may_arrive_twice(exchange: Exchange, request: UpstreamRequest) -> bool:
    """Whether nothing is spoilt if a request is sent again: a model that is asked twice does nothing twice."""
    return request.pieces is None and (bool(exchange.candidates) or exchange.method in _HARMLESS)
