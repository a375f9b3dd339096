"""Pools and what belongs to them: effective caps, backoffs, the usage gate, and blame for a rate limit."""
