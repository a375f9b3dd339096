"""The dashboard's files and `/docs`: read once, served with an ETag and a policy that lets nothing out.

Where there is no dashboard in the package, `/` says what there is instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from litestar import Request, Response, get

import fleetgate
from fleetgate.api.errors import RequestRefused
from fleetgate.api.routes.docs_page import docs_page

FOLDER = os.path.join(os.path.dirname(os.path.abspath(fleetgate.__file__)), "dashboard")

# Nothing from elsewhere, nothing inline, no frames, no forms to elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
    ".txt": "text/plain",
}
_PLAIN_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Fleetgate</title>
<h1>Fleetgate</h1>
<p>The service runs. <a href="/docs">The API</a>, <a href="/v1/status">status</a>, <a href="/metrics">metrics</a>.</p>
</html>
"""
Content = Response[bytes]


class DashboardFile(NamedTuple):
    data: bytes
    type: str
    etag: str


class DashboardFiles:
    """The files below the dashboard's folder, by path. A file that changes on disk is read again (for development)."""

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = os.path.realpath(folder)
        self._known: dict[str, tuple[int, DashboardFile]] = {}

    def find(self, path: str) -> DashboardFile | None:
        """A file; None for what is not there, or not below the folder."""
        kind = TYPES.get(os.path.splitext(path)[1])
        if kind is None or "\0" in path:
            return None
        full = os.path.realpath(f"{self._folder}/{path}")
        if not full.startswith(f"{self._folder}/"):
            return None
        try:
            changed = os.stat(full).st_mtime_ns
            known = self._known.get(full)
            if known is not None and known[0] == changed:
                return known[1]
            with open(full, "rb") as opened:
                data = opened.read()
        except OSError:
            return None
        file = DashboardFile(data, kind, f'"{sha256(data).hexdigest()[:24]}"')
        self._known[full] = (changed, file)
        return file


FILES = DashboardFiles()


@get("/", summary="The dashboard", include_in_schema=False)
async def index(request: Request[Any, Any, Any]) -> Content:
    file = FILES.find("index.html")
    return _sent(request, file or _made(_PLAIN_PAGE.encode(), TYPES[".html"]))


@get("/assets/{path:path}", include_in_schema=False)
async def asset(request: Request[Any, Any, Any], path: str) -> Content:
    file = FILES.find(path.lstrip("/"))
    if file is None:
        raise RequestRefused(404, "not_found", f"no file {path} belongs to the dashboard")
    return _sent(request, file)


@get("/favicon.ico", include_in_schema=False)
async def favicon(request: Request[Any, Any, Any]) -> Content:
    file = FILES.find("favicon.ico") or FILES.find("favicon.svg")
    if file is None:
        return Response(b"", status_code=204)
    return _sent(request, file)


@get("/openapi.json", include_in_schema=False)
async def openapi(request: Request[Any, Any, Any]) -> Content:
    def make(document: dict[str, Any]) -> DashboardFile:
        return _made(msgspec.json.encode(document), "application/json")

    return _sent(request, _kept(request, "openapi_file", make))


@get("/docs", include_in_schema=False)
async def docs(request: Request[Any, Any, Any]) -> Content:
    def make(document: dict[str, Any]) -> DashboardFile:
        return _made(docs_page(document).encode(), TYPES[".html"])

    return _sent(request, _kept(request, "docs_file", make))


@get("/docs.css", include_in_schema=False)
async def docs_style(request: Request[Any, Any, Any]) -> Content:
    from fleetgate.api.routes.docs_page import STYLE

    return _sent(request, _made(STYLE.encode(), TYPES[".css"]))


def _kept(request: Request[Any, Any, Any], name: str, make: Callable[[dict[str, Any]], DashboardFile]) -> DashboardFile:
    """What is made of the API's description: once, as anybody may ask for it."""
    state = request.app.state
    file: DashboardFile | None = state.get(name)
    if file is None:
        file = make(request.app.openapi_schema.to_schema())
        state[name] = file
    return file


def _made(data: bytes, kind: str) -> DashboardFile:
    return DashboardFile(data, kind, f'"{sha256(data).hexdigest()[:24]}"')


def _sent(request: Request[Any, Any, Any], file: DashboardFile) -> Content:
    headers = {"etag": file.etag, "cache-control": "no-cache", "content-security-policy": POLICY}
    if request.headers.get("if-none-match") == file.etag:
        return Response(b"", status_code=304, headers=headers)
    return Response(file.data, media_type=file.type, headers=headers)
