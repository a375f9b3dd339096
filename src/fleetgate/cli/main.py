"""The `fleetgate` command. `run` is started without click, which alone would cost more than all the rest."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from fleetgate.cli import exit_codes, standard_streams
from fleetgate.cli.system_errors import explain  # here, as there may be no file left to open later
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.model_names import shown
from fleetgate.present.text import printable_lines


def main(argv: list[str] | None = None) -> NoReturn:
    """Run a command and leave; no finalisers: nothing is left to do that the kernel does not do faster."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        standard_streams.prepare()
        code = invoke(argv)
    except OSError as error:
        code = tell(explain(error))
    try:
        standard_streams.flush()
    except standard_streams.CannotPrint as error:
        code = code or tell(error)
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
        return tell(error)
    except UnicodeEncodeError as error:  # of an argument or a variable that no file name or text can be
        if not str(error.object).isprintable():
            return tell(BadRequest(f"{shown(str(error.object))}: valid is UTF-8"))
        raise
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # The reader has left (`fleetgate history | head`): not worth a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (OSError, MemoryError) as error:
        return tell(explain(error))


def tell(error: FleetgateError) -> int:
    """Say what is wrong on stderr; the exit code for it."""
    code = exit_codes.exit_code(error)
    prefix = "fleetgate: internal error: " if code == exit_codes.SOFTWARE else "fleetgate: "
    print(printable_lines(f"{prefix}{error}"), file=sys.stderr, flush=True)
    return code
