"""OpenTelemetry: traces and metrics of runs and proxied calls, sent to the endpoint of the config (extra `otel`).

`records.py` is what is known about a run or a call, `otlp.py` makes spans and metrics of it with the official SDK, and
`exporter.py` is the thread that reads the log and feeds both. Only `otlp.py` imports the SDK.

The rule: whatever the endpoint does, no request and no run waits for it. `fleetgate run` never imports this package:
its runs are read from the log, by the service.
"""
