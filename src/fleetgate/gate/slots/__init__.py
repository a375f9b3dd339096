"""Slots for `run` and `acquire`: with the store open, through the node, or without a store."""
