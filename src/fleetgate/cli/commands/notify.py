"""`fleetgate notify`: tell people what happens (SPEC T1)."""

from __future__ import annotations

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import tell
from fleetgate.cli.open_gate import load_config, open_gate
from fleetgate.cli.read_only_gate import note, opened
from fleetgate.cli.run.wait_progress import say
from fleetgate.config.paths import config_path
from fleetgate.config.settings import Notify
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import unattended_ends
from fleetgate.notify.config_watch import NotifyFile
from fleetgate.notify.delivery import Teller
from fleetgate.notify.messages import Message
from fleetgate.notify.senders import NotSent, sender, way


@click.group(short_help="Tell people what happens: by chat, mail, webhook or command.", no_args_is_help=True)
def command() -> None:
    """Tell people what happens, as `[[notify]]` in the config file says.

    \b
    fleetgate notify test
    fleetgate notify run
    """


@command.command("test", short_help="Send a test message.")
@click.argument("names", metavar="[NAME…]", nargs=-1)
def test(names: tuple[str, ...]) -> int:
    """Send a test message to every target, or to those that are named, and say what came of it.

    Exit: 0; 69 when one could not be sent; 64 when nobody is to be told.
    """
    with opened() as gate:
        targets = _targets(gate.settings.notify, names)
        teller = Teller(gate, note)
        message = Message("test", f"a test message of fleetgate on {gate.host}: it works")
        code = exit_codes.OK
        for target in targets:
            try:
                sender(target)(teller.title(message), teller.document(message))
                tell(f"{target.name}: sent ({way(target)})")
            except NotSent as error:
                note(f"{target.name}: {error}")
                code = exit_codes.UNAVAILABLE
    return code


def _targets(known: tuple[Notify, ...], names: tuple[str, ...]) -> tuple[Notify, ...]:
    if not known:
        raise BadRequest("nobody is to be told: add a [[notify]] to the config file, see docs/notifications.md")
    for name in names:
        if not any(target.name == name for target in known):
            raise BadRequest(f"{shown(name)}: no such target; valid are {', '.join(target.name for target in known)}")
    return tuple(target for target in known if not names or target.name in names)


@command.command("run", short_help="Tell people what happens, until Ctrl-C.")
def run() -> int:
    """Tell people what happens from now on. `fleetgate worker` does so by itself; two never tell the same twice.

    Where it is in the history is kept: events that occur while no sender is running are sent
    later. It follows the config file.
    """
    loaded = load_config()
    gate = open_gate(loaded)
    file = NotifyFile(config_path(), loaded, say)
    targets = _targets(file.targets(), ())
    say(f"telling {', '.join(f'{target.name} ({way(target)})' for target in targets)}; Ctrl-C stops it")
    try:
        Teller(gate, say, file.targets, lambda: _look_after(gate)).run()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    return exit_codes.OK


def _look_after(gate: DirectGate) -> None:
    """What a worker does too: without one, no process would notice that a ticket has expired or a worker has died."""
    if gate.turns.take():
        gate.look_around()
    gate.act_if_overdue()
    unattended_ends.see_to_ends(gate)
