"""The routes of access keys, for admins: list, create, rotate, remove (rule E1).

A new key is in the answer and nowhere else: answers are not logged, and no cache may keep this one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from fleetgate.api.bodies import JsonBody, WorkClass
from fleetgate.api.router.route import ApiResponse, delete, get, post
from fleetgate.api.service import Service
from fleetgate.config.errors import BadValue
from fleetgate.config.units import parse_duration_ms
from fleetgate.core.access.keys import ADMIN, RemoveKey, RotateKey
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import shown
from fleetgate.gate.access_keys import key_digest, new_key
from fleetgate.present.access.key_listing import AccessKeyShape, list_keys
from fleetgate.present.access.key_request import KeyRequest, create_command

KeyName = Annotated[str, Meta(min_length=1, max_length=40, description="the name of an access key")]
Budget = Annotated[str, Meta(max_length=100, description="UNIT=AMOUNT/PERIOD, such as usd=5/day")]
_UNCACHED = {"cache-control": "no-store"}


class KeyBody(JsonBody):
    """What `fleetgate key create` says on its command line."""

    name: KeyName
    role: Literal["viewer", "agent", "operator", "admin"] = "agent"
    project: Annotated[str, Meta(max_length=100)] = ""
    work_class: WorkClass | None = field(name="class", default=None)
    max_priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    expires: Annotated[str, Meta(max_length=40, description="how long it is valid, such as 90d")] | None = None
    max_running: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    budgets: Annotated[list[Budget], Meta(max_length=20)] = field(default_factory=list)


class KeysAnswer(Struct):
    keys: list[AccessKeyShape]


class NewKeyAnswer(Struct):
    """A key. This is the only time it is shown."""

    name: str
    key: str


class KeyRemovedAnswer(Struct):
    removed: str


@get("/v1/keys", summary="Access keys, what they may do, and what they have at the gate", role=ADMIN)
async def keys(service: Service) -> KeysAnswer:
    return KeysAnswer(list_keys(*await service.look()))


@post("/v1/keys", summary="Create an access key, which is shown once", role=ADMIN, headers=("cache-control",))
async def create(service: Service, data: KeyBody) -> ApiResponse[NewKeyAnswer]:
    asked = KeyRequest(
        data.name,
        data.role,
        data.project,
        data.work_class or "",
        data.max_priority,
        _duration_ms(data.expires),
        data.max_running,
        tuple(data.budgets),
    )
    made = create_command(asked, service.access_keys.salt, service.gate.now())
    await service.change(made.command)
    return ApiResponse(NewKeyAnswer(data.name, made.text), headers=_UNCACHED)


@post(
    "/v1/keys/{name}/rotate",
    summary="Replace an access key by a new one with the same rights",
    status=200,
    role=ADMIN,
    headers=("cache-control",),
)
async def rotate(service: Service, name: KeyName) -> ApiResponse[NewKeyAnswer]:
    await _must_exist(service, name)
    text = new_key()
    await service.change(RotateKey(name, key_digest(service.access_keys.salt, text)))
    return ApiResponse(NewKeyAnswer(name, text), headers=_UNCACHED)


@delete("/v1/keys/{name}", summary="Remove an access key, with its own caps and budgets", status=200, role=ADMIN)
async def remove(service: Service, name: KeyName) -> KeyRemovedAnswer:
    await _must_exist(service, name)
    await service.change(RemoveKey(name))
    return KeyRemovedAnswer(name)


async def _must_exist(service: Service, name: str) -> None:
    state, _ = await service.look()
    if name not in state.access_keys:
        raise NotFound(f"no key {shown(name)}: GET /v1/keys lists them")


def _duration_ms(text: str | None) -> int:
    try:
        return parse_duration_ms(text) if text else 0
    except BadValue as error:
        raise BadRequest(f"expires: {error}") from error
