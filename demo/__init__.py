"""The demo: a fleet of simulated agents against a fake provider, without and with Fleetgate. Not installed."""
