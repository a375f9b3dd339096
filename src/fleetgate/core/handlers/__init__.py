"""Command handlers: one module for each group of commands."""
