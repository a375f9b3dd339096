"""Access: the keys of people and programs that use the gate over HTTP."""
