"""The price of a model: that of the config file, or else the published one (rule U3).

A model without a price has none: its tokens are counted and its cost is not known, which is not a cost of nothing.
Local models cost nothing only where the config file says so. Of a price that depends on the date or the hour, the one
in force now is used.

Published prices come from a table in the state folder (gate/prices/table.py). Where there is none, or the package
`genai-prices` has changed since, a child process makes it in half a second. `price_of` waits for that, at most
a minute. A service must not wait: it loads the prices when it starts, and begins no call before they are there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from functools import lru_cache
from typing import Final

from fleetgate.core.errors import BadName
from fleetgate.core.model_names import Model, read_model
from fleetgate.core.prices import ConfiguredPrice, Price, configured_price
from fleetgate.gate.prices.table import PriceTable, read_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FILE: Final = "prices.json"  # in the state folder
_MOST_BYTES: Final = 1 << 24  # of the table
_CHILD_S: Final = 60.0  # how long the child may take
_AGAIN_S: Final = 300.0  # after a failure
_KEPT_SECONDS: Final = 300.0  # a price may change with the hour
_MOST_KEPT: Final = 1000  # models; a client can name any
# The names that the package has for providers whose name is another one here (core/model_names.py).
_PACKAGE_NAMES: Final = {"bedrock": "aws", "vertex": "google", "xai": "x-ai"}


def price_of(model: str, configured: Sequence[ConfiguredPrice] = ()) -> Price | None:
    """The price of `provider[@account]/model`; None if it is not known.

    `configured` are those of the config file (`Settings.prices`), the narrowest selector first.
    """
    try:
        named = _read_model(model)
    except BadName:
        return None
    price = configured_price(named, configured)
    return price if price is not None else _published.price(named)


def load_in_background(then: Callable[[], None] | None = None) -> None:
    """Load the published prices in a thread, so that no one waits for them later. `then` is called in the thread."""

    def work() -> None:
        _published.load()
        if then is not None:
            then()

    threading.Thread(target=work, name="fleetgate-prices", daemon=True).start()


def load_from_file() -> bool:
    """Load the published prices if that takes no time; whether `price_of` answers at once now."""
    return _published.load(without_child=True)


_read_model = lru_cache(maxsize=_MOST_KEPT)(read_model)  # a service looks up the same few, thousands of times a second


class PublishedPrices:
    """The prices of the package, in any thread."""

    def __init__(self) -> None:
        self._table: PriceTable | None = None
        self._load_again_at: float | None = 0.0  # None: never
        self._lock = threading.Lock()
        # Prices that were looked up, with the time until which they hold.
        self._known: dict[tuple[str, str], tuple[float, Price | None]] = {}

    def price(self, model: Model) -> Price | None:
        key, now = (model.provider, model.name), time.monotonic()
        found = self._known.get(key)
        if found is None or found[0] <= now:
            self._load_if_due(now)
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            found = self._known[key] = (now + _KEPT_SECONDS, self._look_up(model))
        return found[1]

    def _look_up(self, model: Model) -> Price | None:
        if self._table is None:
            return None
        found = self._table.find(_PACKAGE_NAMES.get(model.provider, model.provider), model.name)
        return None if found is None else found.price_at(time.time())

    def _load_if_due(self, now: float) -> None:
        """Load, and wait for it; after a failure, in a thread and without waiting."""
        at = self._load_again_at
        if at == 0.0:
            self.load()
        elif at is not None and at <= now:
            self._load_again_at = now + _AGAIN_S
            load_in_background()

    def load(self, *, without_child: bool = False) -> bool:
        """Read the table, and have it made if need be; whether that is over."""
        with self._lock:
            if self._table is not None or self._load_again_at is None:
                return True
            source = package_source()
            if source is None:
                self._load_again_at = None
                return True
            try:
                self._table = _table_in_file(source)
                if self._table is None and without_child:
                    return False
                if self._table is None:
                    self._table = _table_of_child(source)
                self._load_again_at = None
            except (OSError, ValueError) as error:
                self._load_again_at = time.monotonic() + _AGAIN_S
                logging.getLogger("fleetgate").warning("the prices of genai-prices cannot be read: %s", error)
            return True


_published = PublishedPrices()


def package_source() -> str | None:
    """What names the installed package and its version; None where it is not installed (the extra `prices`)."""
    from importlib.util import find_spec

    try:
        spec = find_spec("genai_prices")
    except ValueError:  # a program has put None in its place
        return None
    if spec is None or not spec.origin:
        return None
    found = os.stat(os.path.join(os.path.dirname(spec.origin), "data.py"))
    return f"{spec.origin} {found.st_size} {found.st_mtime_ns}"


def _table_in_file(source: str) -> PriceTable | None:
    """The table of the state folder, if it is trusted and of this package."""
    from fleetgate.config.errors import ConfigError
    from fleetgate.config.paths import state_folder
    from fleetgate.log.store_files import read_trusted

    try:
        folder = state_folder()
        return read_table(read_trusted(os.path.join(folder, FILE), folder, most=_MOST_BYTES), source)
    except (OSError, ValueError, ConfigError):
        return None


def _table_of_child(source: str) -> PriceTable:
    """The table that a child process makes; it is kept for the next time. OSError, ValueError."""
    import subprocess

    from fleetgate.config.errors import ConfigError
    from fleetgate.config.paths import state_folder
    from fleetgate.gate.python_command import python_command
    from fleetgate.log.store_files import write_own

    command = python_command("fleetgate.gate.prices.extract", source)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CHILD_S,
            start_new_session=True,  # a Ctrl-C is meant for others
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading them takes longer than {_CHILD_S:.0f} s") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(last or f"exit {done.returncode}")
    table = read_table(done.stdout, source)
    try:
        write_own(os.path.join(state_folder(), FILE), done.stdout, 0o644)
    except (OSError, ConfigError):
        pass  # it is made again next time
    return table
