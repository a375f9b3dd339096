"""Signing a browser in and out, and what a client may do (api/security/sessions.py has the rules)."""

from __future__ import annotations

import asyncio

from fleetgate.api.bodies import LinkAnswer, LinkBody, SessionShape, SignInAnswer, SignInBody, SignOutAnswer
from fleetgate.api.errors import RequestRefused
from fleetgate.api.router.route import ApiRequest, ApiResponse, delete, get, post
from fleetgate.api.security.caller import ANYONE
from fleetgate.api.security.link_files import remove_link_file, remove_old_link_files
from fleetgate.api.security.sessions import CODE_S, HEADER
from fleetgate.api.service import Service
from fleetgate.config.paths import state_folder
from fleetgate.core.access.keys import ADMIN, AccessKey
from fleetgate.front.asgi import request_of
from fleetgate.gate.serving.access_keys import KeyNotKnownYet
from fleetgate.present.wall_time import utc

_MARGIN_S = 5  # the file is a little younger than the code


@post("/v1/login-links", summary="A one-time link that signs a browser in", role=ADMIN)
async def login_link(service: Service, data: LinkBody | None = None) -> LinkAnswer:
    # Its file, if it is not used: `fleetgate open` does not wait that long.
    asyncio.get_running_loop().call_later(CODE_S + _MARGIN_S, remove_old_link_files, state_folder())
    code = service.access.tokens.sessions.new_code(shared=data is not None and data.shared)
    # In the fragment: no browser sends it anywhere, and no log has it.
    return LinkAnswer(f"{service.url}/#code={code}", CODE_S)


@get("/v1/session", summary="What this client may do, and which service it talks to", role=ANYONE)
async def session(service: Service, request: ApiRequest) -> SessionShape:
    return session_of(service, request)


@post(
    "/v1/session",
    summary="Sign in with a one-time code or an access key",
    status=200,
    role=ANYONE,
    headers=("set-cookie",),
)
async def sign_in(service: Service, request: ApiRequest, data: SignInBody) -> ApiResponse[SignInAnswer]:
    if bool(data.code) == bool(data.key):
        raise RequestRefused(400, "bad_request", "valid is either `code`, of a one-time link, or `key`, an access key")
    sessions = service.access.tokens.sessions
    if data.key:
        begun = sessions.begin(await _key_for_page(service, data.key.strip()))
    else:
        _redeem(service, request, data.code)
        begun = sessions.begin()
    answer = SignInAnswer(begun.secret, utc(begun.ends_at * 1000) or "")
    return ApiResponse(answer, headers=_headers(sessions.cookie_header(begun, tls=_is_tls(request))))


async def _key_for_page(service: Service, text: str) -> AccessKey:
    """The access key that signs a browser in. RequestRefused."""
    while True:
        try:
            key = service.access.find_key(text)
            break
        except KeyNotKnownYet as error:
            await error.looked
    if key is None:
        raise RequestRefused(403, "key_wrong", "this is not a valid access key: it is unknown, removed or expired")
    return key


def _redeem(service: Service, request: ApiRequest, code: str) -> None:
    """Use the code of a link up. RequestRefused."""
    access = service.access
    sessions = access.tokens.sessions
    trusted = not access.loopback or access.trusts(request_of(request.scope).peer)
    if not sessions.is_for(code, trusted=trusted):
        raise RequestRefused(
            403,
            "stranger",
            "this link is only for the user who made it: `fleetgate open --share` makes one for other users of this "
            "machine, or to use behind a reverse proxy",
        )
    if not sessions.redeem(code):
        raise RequestRefused(
            403, "code_wrong", "this link was used already, or is too old: `fleetgate open` makes another"
        )
    remove_link_file(state_folder(), code)


@delete("/v1/session", summary="Sign out: end the session", status=200, headers=("set-cookie",), role=ANYONE)
async def sign_out(service: Service, request: ApiRequest) -> ApiResponse[SignOutAnswer]:
    sessions = service.access.tokens.sessions
    cookies, secret = request.header("cookie") or "", request.header(HEADER.decode()) or ""
    sessions.end(cookies.encode("latin-1"), secret.encode("latin-1"))
    return ApiResponse(SignOutAnswer(True), headers=_headers(sessions.cookie_header(None, tls=_is_tls(request))))


def session_of(service: Service, request: ApiRequest) -> SessionShape:
    return SessionShape(
        version=service.version,
        may_change=request.caller.may_change,
        role=request.caller.role or None,
        key=request.caller.named_key or None,
        user=request.caller.user or None,
        project=request.caller.project or None,
        loopback=service.access.loopback,
        host=service.gate.host,
        seq=service.feed.seq,
        started_at=service.started_at,
        dashboard=service.dashboard,
    )


def _is_tls(request: ApiRequest) -> bool:
    """Whether the browser speaks TLS, with a reverse proxy before us: its Origin says so, and was found to be ours."""
    return (request.header("origin") or "").lower().startswith("https://")


def _headers(cookie: str) -> dict[str, str]:
    return {"set-cookie": cookie, "cache-control": "no-store"}
