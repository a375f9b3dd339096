"""Leases over HTTP: acquire, renew, release."""
