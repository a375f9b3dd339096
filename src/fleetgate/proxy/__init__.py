"""The proxy: agents that never see a 429 (SPEC X). A raw ASGI application beside the HTTP API.

One request's way: `app` finds the provider, the account and the model; `holding` waits in the queue for a slot, asks
the provider, and asks again when it says "too many"; `relay` passes the answer on, byte for byte, and gives the slot
back with the last one. A client that leaves, at any moment, ends all of it at once.

| file | what is in it |
| --- | --- |
| `app.py` | the ASGI entry: one request from its first byte to its line in the access log |
| `routes.py` | whose request it is: `/PROVIDER/…`, `/p/PROJECT/PROVIDER/…`, `/l/LEASE/PROVIDER/…` |
| `missing.py` | what to say where no known provider is named |
| `upstreams.py` | the providers: where they are, a client for each |
| `callers.py` | who calls, with whose key, and which models may answer |
| `accounts.py` | which account a key belongs to |
| `identities.py` | whose login a token is, by what the provider says |
| `unproven.py` | calls with a key that no provider has accepted yet |
| `bodies.py` | the request's body: its model, and how much of it is kept |
| `early.py` | comments that begin a stream while its request waits |
| `places.py` | the places of clients that left the queue, and may come back |
| `holding.py` | the line, attempts and fallbacks |
| `relay.py` | the answer |
| `watching.py` | notices a client that has left |
| `streams.py` | errors inside a stream |
| `headers.py` | what is passed on and what is not |
| `errors.py` | our own refusals, as the provider would say them |
| `access.py` | the access log |
"""
