"""Liveness: process identity, dead holders, host beats, foreign agents and free memory."""
