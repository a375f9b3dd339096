"""A call through the proxy: its attempts, its slot, and the relay of its response."""
