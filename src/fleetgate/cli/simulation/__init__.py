"""`fleetgate simulate --from-history`."""
