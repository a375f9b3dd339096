"""Shims: programs with the names of agents, first on PATH, that start the real ones under `fleetgate run`."""
