"""A replica of the state that decides in transactions on the log."""
