"""Live events: the one reader of the log in a service, and the stream of server-sent events."""
