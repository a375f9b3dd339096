"""What really happened, played again under another cap or policy (`simulate --from-history`).

`log_reader.py` turns the events of a log into a trace: who asked when, how long leases lasted, what was set, and what
the provider refused. `replay.py` plays a trace with the engine, `figures.py` measures both, `comparison.py` compares.
"""
