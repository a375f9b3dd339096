"""The node of a host: its server, clients, protocol and shared database connections."""
