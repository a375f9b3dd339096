"""`fleetgate notify`: notifications by chat, mail, webhook or command."""

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
from fleetgate.notify.delivery import Notifier
from fleetgate.notify.messages import Message
from fleetgate.notify.senders import NotSent, sender, way


@click.group(short_help="Send notifications: chat, mail, webhook or command.", no_args_is_help=True)
def command() -> None:
    """Send notifications to the targets in the [[notify]] sections of the config file.

    \b
    fleetgate notify test
    fleetgate notify run
    """


@command.command("test", short_help="Send a test message.")
@click.argument("names", metavar="[NAME…]", nargs=-1)
def test(names: tuple[str, ...]) -> int:
    """Send a test message to every target, or to the named ones, and print the results.

    \b
    fleetgate notify test
    fleetgate notify test ops-chat

    Exit codes: 0; 69 when a message could not be sent; 64 when there are no targets.
    """
    with opened(strict=True) as gate:
        targets = _targets(gate.settings.notify, names)
        teller = Notifier(gate, note)
        message = Message("test", f"Test message from Fleetgate on {gate.host}")
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
        raise BadRequest("no notification targets: add a [[notify]] section to the config file (docs/notifications.md)")
    for name in names:
        if not any(target.name == name for target in known):
            raise BadRequest(f"{shown(name)}: no such target; valid are {', '.join(target.name for target in known)}")
    return tuple(target for target in known if not names or target.name in names)


@command.command("run", short_help="Send notifications until Ctrl-C.")
def run() -> int:
    """Send notifications from now on. `fleetgate worker` does the same; no event is sent twice.

    Events that occur while no sender is running are sent later. Changes of the config file are applied.

    \b
    fleetgate notify run
    """
    loaded = load_config()
    gate = open_gate(loaded)
    file = NotifyFile(config_path(), loaded, say)
    targets = _targets(file.targets(), ())
    say(f"notifying {', '.join(f'{target.name} ({way(target)})' for target in targets)}; press Ctrl-C to stop")
    try:
        Notifier(gate, say, file.targets, lambda: _look_after(gate)).run()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    return exit_codes.OK


def _look_after(gate: DirectGate) -> None:
    """As a worker does: without one, no process would notice that a ticket has expired or a worker has died."""
    if gate.turns.take():
        gate.run_checks()
    gate.act_if_overdue()
    unattended_ends.see_to_ends(gate)
