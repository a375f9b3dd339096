"""Access keys on the command line: those of this machine's gate, and those of a service elsewhere."""
