"""The history of limits over HTTP."""
