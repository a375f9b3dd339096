"""State and history as people and programs are told them (SPEC O): what the command line and the HTTP API share."""
