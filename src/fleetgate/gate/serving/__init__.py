"""The gate of a service: model calls, HTTP clients and their renewals, local users."""
