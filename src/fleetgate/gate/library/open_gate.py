"""`fleetgate.open_gate`: a gate for asyncio programs, made of a store and a config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import time_ns
from typing import Any

from fleetgate.config.document import settings_of, shown_path
from fleetgate.config.errors import ConfigError, ConfigProblem, Problems
from fleetgate.config.file import Loaded, digest, load
from fleetgate.config.paths import config_path, store_url
from fleetgate.gate.library.gate import Gate
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.providers.usage_questions import UsageCallable
from fleetgate.log import open_log
from fleetgate.log.store_url import local_folder

Config = str | os.PathLike[str] | Mapping[str, Any] | None


def open_gate(
    store: str | None = None, config: Config = None, usage: Mapping[str, UsageCallable] | None = None
) -> Gate:
    """Return a gate to enter once with `async with`. It belongs to one event loop; any of its tasks may use it.

        async with fleetgate.open_gate() as gate:
            async with gate.lease("umans/coder") as lease:
                answer = await call(lease.model)

    Args:
      store: `sqlite:///absolute/folder` for the processes of one machine, `postgresql://user@host/database` for many
          machines, or `memory://` for this gate alone. The default is the store that `fleetgate run` uses.
      config: The path of a config file, or its content as a mapping. The default is the file that `fleetgate run` uses
          (none with `memory://`). The caps in it do not apply to a store that many machines share.
      usage: For the usage gate, an async function for each provider that no HTTP path describes. It is called with the
          account's name and returns how much is in flight there.

    Raises:
      ConfigError: When the config or the store's address is wrong.
      StoreError: On entering the block, when the store cannot be used.
    """
    return Gate(open_core(store, config, usage))


def open_core(
    store: str | None = None, config: Config = None, usage: Mapping[str, UsageCallable] | None = None
) -> GateCore:
    """The core of such a gate, for APIs that are built beside `Gate`."""
    url = store_url() if store is None else store_url({**os.environ, "FLEETGATE_STORE": store})
    loaded = _load(config, memory=url == "memory://")
    return GateCore(open_log(url), loaded, local_folder(url), usage)


def _load(config: Config, *, memory: bool) -> Loaded | None:
    if config is None:
        # A gate in memory is for this process alone: the machine's caps do not apply to it.
        return None if memory else load(config_path(), required=bool(os.environ.get("FLEETGATE_CONFIG")))
    if isinstance(config, Mapping):
        return _from_mapping(config)
    return load(os.fspath(config), required=True)


def _from_mapping(config: Mapping[str, Any]) -> Loaded:
    import msgspec

    problems: Problems = []
    settings = settings_of(dict(config), problems)
    if problems:
        raise ConfigError(*(ConfigProblem("config", text, key=shown_path(path)) for path, text in problems))
    content = msgspec.json.encode(config, order="deterministic")
    return Loaded("<mapping>", digest(content), time_ns() // 1_000_000, settings)
