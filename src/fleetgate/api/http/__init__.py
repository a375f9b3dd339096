"""The way of a request from the HTTP front (fleetgate.front) to its handler."""
