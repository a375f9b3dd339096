"""The gate for Python programs, with its leases, waiting requests and background tasks."""
