"""Wake-ups of waiting processes, on this host and on others."""
