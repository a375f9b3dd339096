"""The proxy: agents that use it never see a 429 (rules X1 to X7). A raw ASGI application next to the HTTP API.

The way of one request: `app` finds the provider, the account and the model; `attempts` waits in the queue for a slot,
sends the request, and sends it again when the provider refuses it with "too many"; `response_relay` passes the answer
on, byte for byte, and releases the slot with the last one. A client that leaves ends all of it at once.
"""
