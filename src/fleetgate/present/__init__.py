"""State and history as text and as JSON (rules O1 to O8): shared by the command line and the HTTP API."""
