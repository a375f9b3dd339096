"""Access keys for people: how one is asked for, and how they are listed."""
