"""`fleetgate doctor`: checks of the store, the gate and the providers."""
