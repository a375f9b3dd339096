"""The parts of `fleetgate run` and `fleetgate acquire`: options, request, queue, progress, status file, proxy."""
