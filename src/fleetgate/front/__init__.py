"""The HTTP/1.1 server in front of the service: it reads requests, hands each one to a handler, and writes the response.

It knows nothing of slots, tokens or routes. `server.py` accepts connections, `handshake.py` begins TLS on them,
`connection.py` reads what a client sends, `request.py` is one request with the response to it, and `asgi.py` runs an
ASGI application as a handler.

A handler is a function that gets a `ClientRequest`. It may respond at once, in the same turn of the event loop, or
later, from a callback or a task. Only `asgi.py` creates a task for a request, because ASGI needs one.
"""
