"""`fleetgate.open_gate`: a gate from a store and a config, for asyncio programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import time_ns
from typing import Any

from fleetgate.config.document import Problems, settings_of, shown_path
from fleetgate.config.errors import ConfigError, Problem
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
    """A gate, to be entered with `async with`.

    `store` is `sqlite:///absolute/folder`, `postgresql://user@host/database`, `memory://` (this process alone), or
    None for the one that the environment names: the same that `fleetgate run` uses. `config` is a file's path, the same
    as a mapping, or None for the environment's file; its caps are not for a gate of many machines. `usage` answers the
    usage gate for providers that no HTTP path describes: by provider, an async function that is given the account's
    name and returns how much is in flight there.
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
        # A gate of this process alone has nothing to do with the machine's caps.
        return None if memory else load(config_path(), required=bool(os.environ.get("FLEETGATE_CONFIG")))
    if isinstance(config, Mapping):
        return _from_mapping(config)
    return load(os.fspath(config), required=True)


def _from_mapping(config: Mapping[str, Any]) -> Loaded:
    import msgspec

    problems: Problems = []
    settings = settings_of(dict(config), problems)
    if problems:
        raise ConfigError(*(Problem("config", text, key=shown_path(path)) for path, text in problems))
    content = msgspec.json.encode(config, order="deterministic")
    return Loaded("<mapping>", digest(content), time_ns() // 1_000_000, settings)
