"""Admission control for fleets of AI agents."""
