"""`python -m fleetgate` is the `fleetgate` command."""

from fleetgate.cli.start import main

main()
