"""`python -m fleetgate` is the `fleetgate` command."""

from fleetgate.cli.main import main

main()
