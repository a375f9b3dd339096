"""The state, what each event does to it, and its snapshots."""
