"""The start of the `fleetgate` command, and of `python -m fleetgate`. A status line is printed before anything else."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command and exit."""
    if sys.argv[1:] == ["statusline"]:
        from fleetgate.cli.statusline.line import print_line

        print_line()
        os._exit(0)
    from fleetgate.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
