"""Rates and budgets as text and as JSON."""
