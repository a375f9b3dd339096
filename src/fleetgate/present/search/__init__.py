"""Searches in the queue and in the history."""
