"""`fleetgate logs`: the output of a job, across its attempts, or of a run with --log."""

from __future__ import annotations

import os
import sys
from time import sleep

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.completion_values import complete_output
from fleetgate.cli.read_only_gate import note, opened
from fleetgate.core.errors import BadRequest
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import output_files
from fleetgate.jobs.job_json import STREAMS
from fleetgate.jobs.job_store import find_output, has_ended
from fleetgate.jobs.output_files import ERR, NOTE, OutputReader, Piece
from fleetgate.present.wall_time import utc

POLL_S = 0.2


@click.command(short_help="Print the output of a job or run; -f follows.")
@click.argument("ident", metavar="ID|NAME", shell_complete=complete_output)
@click.option("-f", "--follow", is_flag=True, help="Follow until the job or run finishes, across retries.")
@click.option("--stream", type=click.Choice(["out", "err"]), help="Only stdout, or only stderr.")
@click.option("--marked", is_flag=True, help="Prefix each line with time and stream, and mark the start of attempts.")
def command(ident: str, follow: bool, stream: str | None, marked: bool) -> int:
    """Print the output of a job, or of a run with --log, unchanged: its stdout to stdout, its stderr to stderr.

    The newest run of a name is meant.

    \b
    fleetgate logs 7kq
    fleetgate logs -f nightly
    fleetgate logs --marked 7kq

    Exit codes: 0; 64 when there is no such job or run.
    """
    with opened(configured=False) as gate:
        if not gate.folder:
            raise BadRequest("an in-memory store keeps no output")
        job = find_output(gate, ident)
        reader = OutputReader(gate.folder, job)
        writer = _Marked(stream) if marked else _Plain(stream)
        try:
            shown = _print(reader, writer)
            while follow and not _is_over(gate, job):
                sleep(POLL_S)
                shown = _print(reader, writer) or shown
            shown = _print(reader, writer) or shown
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return exit_codes.OK
        if not shown and not output_files.files(gate.folder, job):
            note(f"{job} has no output yet")
    return exit_codes.OK


def _is_over(gate: DirectGate, job: str) -> bool:
    return has_ended(gate, job)


def _print(reader: OutputReader, writer: _Plain) -> bool:
    shown = False
    for piece in reader.read():
        writer.write(piece)
        shown = True
    writer.flush()
    return shown


class _Plain:
    """The output, each stream to its own."""

    def __init__(self, only: str | None) -> None:
        self._only = only

    def wanted(self, piece: Piece) -> bool:
        return self._only is None or STREAMS.get(piece.mark) == self._only

    def write(self, piece: Piece) -> None:
        if piece.mark != NOTE and self.wanted(piece):
            to = sys.stderr if piece.mark == ERR and self._only is None else sys.stdout
            to.buffer.write(piece.data)

    def flush(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()


class _Marked(_Plain):
    """Each line with its time and stream, all on stdout."""

    def __init__(self, only: str | None) -> None:
        super().__init__(only)
        self._open: dict[bytes, bytes] = {}  # the beginning of an incomplete line, by stream

    def write(self, piece: Piece) -> None:
        if not self.wanted(piece):
            return
        line = self._open.pop(piece.mark, b"") + piece.data
        if not piece.whole:
            self._open[piece.mark] = line
            return
        head = f"{utc(piece.at)} {STREAMS.get(piece.mark, 'out'):<8} "
        sys.stdout.buffer.write(head.encode() + line)
