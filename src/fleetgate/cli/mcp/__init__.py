"""`fleetgate mcp`: the gate as tools for an agent that delegates, over the Model Context Protocol.

`arguments.py` and `results.py` are what the tools take and return, `tools.py` is what they do, `server.py` speaks the
protocol. Only `server.py` needs the extra `mcp`.
"""
