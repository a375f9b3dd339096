"""Fleets, providers and policies in virtual time, decided by the same engine as in production.

`scenario.py` and `scenarios/*.toml` say what is tried, `provider.py` plays the provider, `world.py` moves the agents
and asks the engine, `policies.py` says how the limit is set, `result.py` sums up, `runs.py` does many, `table.py` and
`plot.py` show. No I/O but reading the scenarios; one seed gives one result, on any machine.
"""
