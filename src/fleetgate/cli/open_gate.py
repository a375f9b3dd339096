"""The gate that the environment and the config file describe, opened in several ways."""

from __future__ import annotations

import os
from contextlib import contextmanager
from time import monotonic, sleep, time

from fleetgate.config.file import Loaded, load
from fleetgate.config.paths import config_path, sqlite_folder, store_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from fleetgate.cli.store_outage import Outage
    from fleetgate.gate.slots.direct_gate import DirectGate
    from fleetgate.gate.slots.slot_gate import SlotGate
    from fleetgate.log.protocol import Log, StoreMoved

    T = TypeVar("T")

LOCK_PATIENCE_S = 5.0
_OPENED_S = 30.0  # how long a gate may be closed while it moves


def load_config() -> Loaded | None:
    """The config file, if it exists; one that the environment names must exist."""
    return load(config_path(), required=bool(os.environ.get("FLEETGATE_CONFIG")))


def load_to_read(warn: Callable[[str], None]) -> Loaded | None:
    """The config file for a command that only reads: it works without an invalid one, and says so."""
    from fleetgate.config.errors import ConfigError

    path = config_path()
    try:
        return load_config()
    except ConfigError as error:
        if not os.path.exists(path):
            raise  # the environment names a file that is not there
        first, *others = error.problems
        more = f" (and {len(others)} more: `fleetgate config check`)" if others else ""
        warn(f"the config file is not valid, so it is not used: {first}{more}; to correct it: fleetgate config edit")
        return None


def open_gate(
    loaded: Loaded | None = None, *, configured: bool = True, alone: bool = False, starts: bool = False
) -> DirectGate:
    """The gate of this machine. A long wait for the store's lock is explained on stderr.

    On PostgreSQL it uses a connection of the host's node if one is running; with `starts` a node is started if needed,
    and with `alone` the store is always opened directly.
    """
    if configured and loaded is None:
        loaded = load_config()
    from fleetgate.gate.slots.direct_gate import DirectGate
    from fleetgate.log.store_url import local_folder

    url = store_url()
    folder = local_folder(url)
    gate = DirectGate(_open_log(url, folder, alone=alone, starts=starts), loaded, folder)
    _explain_waits(gate)
    return gate


def _open_log(url: str, folder: str, *, alone: bool, starts: bool) -> Log:
    from fleetgate.log.store_url import POSTGRES

    if not alone and url.startswith(POSTGRES):
        from fleetgate.gate.node import discovery

        path = _met_at(folder, url)
        if path and (starts or discovery.is_held(path)):
            from fleetgate.gate.node.pooled_connection import open_pooled

            return open_pooled(url, path, start=(lambda: discovery.start(folder)) if starts else None)
    from fleetgate.log import open_log

    return open_log(url)


def _met_at(folder: str, url: str) -> str:
    """The socket of the node; "" where there can be none, or nothing has ever been run here."""
    from fleetgate.gate.node import discovery

    try:
        return discovery.socket_path(folder, url) if folder else ""
    except OSError:
        return ""


def open_slot_gate(loaded: Loaded | None) -> SlotGate:
    """The gate for a request for a slot: through the node of this host if one is running, else as `open_gate`."""
    from fleetgate.cli.run.wait_progress import say
    from fleetgate.gate.node import discovery
    from fleetgate.log.store_url import POSTGRES, local_folder

    url = store_url()
    far = url.startswith(POSTGRES)
    folder = local_folder(url)
    path = _met_at(folder, url)
    start = (lambda: discovery.start(folder)) if far else None
    sock = discovery.connect(path) if path else None
    if sock is None and path and start is not None:
        began = time()
        start()  # a thousand waiting agents must not need a thousand connections to the server
        sock = discovery.await_node(path)
        if sock is None and (why := discovery.read_end_reason(path, began)):
            raise why  # the node has already tried for long enough
    if sock is None:
        return open_gate(loaded, alone=True)
    sock.close()
    from fleetgate.gate.slots.node_gate import NodeGate

    # The config file of one machine does not apply to a gate that many share (rule C2).
    open_direct = lambda: open_gate(loaded, alone=True)  # noqa: E731
    return NodeGate(path, loaded, folder, open_direct=open_direct, start=start, tell=say, filed=not far)


def open_patiently(loaded: Loaded | None, outage: Outage) -> SlotGate:
    """The same, waiting for a server that is being restarted."""
    from fleetgate.gate.node import discovery
    from fleetgate.log.protocol import StoreAway
    from fleetgate.log.store_url import local_folder

    while True:
        try:
            return open_slot_gate(loaded)
        except StoreAway as error:
            url = store_url()
            if not outage.retries_after(error, known=discovery.was_reached(_met_at(local_folder(url), url))):
                raise


def follow(moved: StoreMoved, loaded: Loaded | None) -> SlotGate:
    """The gate at its new location, for a process that is waiting or has a running agent.

    Its ticket and its lease are there, and processes that it starts use the new location, too. Raises an error that
    says what to do if the new location cannot be used from here.
    """

    def opened() -> SlotGate:
        gate = open_slot_gate(loaded)
        gate.now()  # it answers
        return gate

    return _followed(moved, opened)


def switch_store(moved: StoreMoved) -> None:
    """The same for a process that opens the store again later."""
    from fleetgate.log import open_log

    _followed(moved, lambda: open_log(store_url())).close()


def _followed(moved: StoreMoved, opened: Callable[[], T]) -> T:
    from fleetgate.cli.run.wait_progress import say
    from fleetgate.log.protocol import StoreError
    from fleetgate.log.store_files import only_writer

    folder = sqlite_folder(store_url())
    if folder is not None and only_writer(folder) is None:
        raise StoreError(
            f"{moved}. It is not followed automatically: other users can write to {folder}, and may have redirected you"
        )
    os.environ["FLEETGATE_STORE"] = moved.to
    until = monotonic() + _OPENED_S
    while True:
        try:
            gate = opened()
        except StoreError as error:
            if monotonic() < until and "being filled" in str(error):
                sleep(0.2)  # the last step of moving it
                continue
            raise StoreError(f"{moved}, and start this again. Switching to it automatically failed: {error}") from error
        say(f"the gate has moved to {moved.to}: continuing there")
        return gate


def _explain_waits(gate: DirectGate) -> None:
    import signal

    def explain(*_: object) -> None:
        from fleetgate.cli.run.wait_progress import say
        from fleetgate.gate.liveness.process_identity import describe

        owner = gate.log.lock_owner()
        who = f"process {owner} ({describe(owner)})" if owner else "another process"
        hint = f"; if it is stopped: kill -CONT {owner}, or kill -9 {owner}" if owner else ""
        say(f"still waiting for the store: {who} holds its lock{hint}")

    @contextmanager
    def lock_wait() -> Iterator[None]:
        signal.setitimer(signal.ITIMER_REAL, LOCK_PATIENCE_S, 6 * LOCK_PATIENCE_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    try:
        signal.signal(signal.SIGALRM, explain)
    except ValueError:
        return  # not in the main thread: no user is waiting for this one
    gate.lock_wait = lock_wait
