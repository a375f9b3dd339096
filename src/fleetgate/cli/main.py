"""The `fleetgate` command. `run` starts without click, which alone takes longer to load than all the rest."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from fleetgate.cli import exit_codes, standard_streams
from fleetgate.cli.system_errors import explain  # imported early: later, no more files may be opened
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.model_names import shown
from fleetgate.present.text import printable_lines


def main(argv: list[str] | None = None) -> NoReturn:
    """Run a command and exit, without finalizers: the kernel cleans up faster."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        standard_streams.prepare()
        code = invoke(argv)
    except OSError as error:
        code = print_error(explain(error))
    try:
        standard_streams.flush()
    except standard_streams.CannotPrint as error:
        code = code or print_error(error)
    os._exit(code)


def invoke(argv: list[str]) -> int:
    """Run a command; its exit code."""
    try:
        if argv[:1] == ["run"]:
            from fleetgate.cli.run.run_options import parse_fast

            options = parse_fast(argv[1:])
            if options is not None:
                from fleetgate.cli.commands.run import run

                return run(options)
        from fleetgate.cli.click_group import dispatch

        return dispatch(argv)
    except FleetgateError as error:
        return print_error(error)
    except UnicodeEncodeError as error:  # an argument or a variable that is not valid text
        if not str(error.object).isprintable():
            return print_error(BadRequest(f"{shown(str(error.object))}: valid is UTF-8"))
        raise
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # The reader has left (`fleetgate history | head`): that is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (OSError, MemoryError) as error:
        return print_error(explain(error))


def print_error(error: FleetgateError) -> int:
    """Print an error on stderr; its exit code."""
    code = exit_codes.exit_code(error)
    prefix = "fleetgate: internal error: " if code == exit_codes.SOFTWARE else "fleetgate: "
    print(printable_lines(f"{prefix}{error}"), file=sys.stderr, flush=True)
    return code
