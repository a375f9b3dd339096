"""Workers: the processes that run jobs, one attempt at a time each."""
