"""The gate around the pure engine: transactions, wake-ups, liveness, credentials; for library, service and node."""
