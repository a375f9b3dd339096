"""The queue: tickets in order, admission, reservations and positions."""
