"""Where access keys are kept: in the gate of this machine, or in a service elsewhere, which is asked over HTTP."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote

import msgspec

from fleetgate.cli.access.remote_service import call
from fleetgate.cli.click_helpers import opened_gate
from fleetgate.cli.read_only_gate import current, opened
from fleetgate.core.access.keys import RemoveKey, RotateKey
from fleetgate.gate.access_keys import key_digest, new_key, store_salt
from fleetgate.present.access.key_listing import AccessKeyShape, list_keys
from fleetgate.present.access.key_request import KeyRequest, create_command
from fleetgate.present.log_time import LogTimes


class KeyStore(Protocol):
    """The keys of one gate. New ones are returned as text, once."""

    def create(self, asked: KeyRequest) -> str: ...
    def every(self) -> list[AccessKeyShape]: ...
    def rotate(self, name: str) -> str: ...
    def remove(self, name: str) -> None: ...


class OwnKeys:
    """The keys of this machine's gate."""

    def create(self, asked: KeyRequest) -> str:
        gate = opened_gate()
        made = create_command(asked, store_salt(gate.replica), gate.now())
        gate.one(made.command, durable=True)
        return made.text

    def every(self) -> list[AccessKeyShape]:
        with opened(configured=False) as gate:
            return list_keys(current(gate), LogTimes(gate))

    def rotate(self, name: str) -> str:
        gate = opened_gate()
        text = new_key()
        gate.one(RotateKey(name, key_digest(store_salt(gate.replica), text)), durable=True)
        return text

    def remove(self, name: str) -> None:
        opened_gate().one(RemoveKey(name), durable=True)


class ServiceKeys:
    """The keys of a service elsewhere. It makes them itself; this process only shows them."""

    def __init__(self, url: str) -> None:
        self._url = url

    def create(self, asked: KeyRequest) -> str:
        body = {
            "name": asked.name,
            "role": asked.role,
            "project": asked.project,
            "class": asked.work_class or None,
            "max_priority": asked.max_priority,
            "expires": f"{asked.expires_ms}ms" if asked.expires_ms else None,
            "max_running": asked.max_running,
            "budgets": asked.budgets,
        }
        return str(call(self._url, "POST", "/v1/keys", body)["key"])

    def every(self) -> list[AccessKeyShape]:
        found = call(self._url, "GET", "/v1/keys")["keys"]
        return msgspec.convert(found, list[AccessKeyShape])

    def rotate(self, name: str) -> str:
        return str(call(self._url, "POST", f"/v1/keys/{quote(name, safe='')}/rotate")["key"])

    def remove(self, name: str) -> None:
        call(self._url, "DELETE", f"/v1/keys/{quote(name, safe='')}")
