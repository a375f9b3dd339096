"""State, listings and jobs as JSON."""
