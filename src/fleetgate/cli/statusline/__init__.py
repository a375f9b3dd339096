"""The status line: `line.py` prints it from what was known last, and `refresh.py` finds out what is true now."""
