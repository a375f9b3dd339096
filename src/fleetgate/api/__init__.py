"""The HTTP API (docs/http.md): what the command line does, a stream of events, metrics, the dashboard's files.

A request passes the guard (who may), then the routes (what is meant), then the gate (what is decided). The few routes
that are called thousands of times a second are answered before the router, by the same functions.
"""
