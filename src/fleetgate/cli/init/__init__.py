"""`fleetgate init`: a survey of the machine, a config file that fits it, shims, completion and a service."""
