"""`python -m headgate` is the `headgate` command."""

from headgate.cli.main import main

main()
