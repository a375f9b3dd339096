"""The dashboard's files and `/docs`: read once, served with an ETag and a policy that lets nothing out.

An installation has the files compressed (setup.py), and sends them as they are to clients that accept gzip. A working
copy has them uncompressed. Where there is no dashboard in the package, `/` says what there is instead.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

import fleetgate
from fleetgate.api.errors import RequestRefused
from fleetgate.api.router.route import ApiRequest, ApiResponse, get
from fleetgate.api.routes.docs_page import docs_page
from fleetgate.api.security.caller import ANYONE

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
Content = ApiResponse[bytes]


class DashboardFile(NamedTuple):
    data: bytes
    type: str
    etag: str
    compressed: bool = False


class DashboardFiles:
    """The files below the dashboard's folder, by path. A file that changes on disk is read again (for development)."""

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = os.path.realpath(folder)
        self._known: dict[str, tuple[int, DashboardFile]] = {}

    def find(self, path: str, *, accepts_gzip: bool = False) -> DashboardFile | None:
        """A file; None for what is not there, or not below the folder."""
        kind = TYPES.get(os.path.splitext(path)[1])
        if kind is None or "\0" in path:
            return None
        file = self._read(path, kind)
        if file is not None:
            return file
        packed = self._read(path + ".gz", kind)
        if packed is None:
            return None
        return (
            DashboardFile(packed.data, kind, packed.etag, compressed=True)
            if accepts_gzip
            else _made(gzip.decompress(packed.data), kind)
        )

    def _read(self, path: str, kind: str) -> DashboardFile | None:
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
        file = _made(data, kind)
        self._known[full] = (changed, file)
        return file


FILES = DashboardFiles()


@get("/", summary="The dashboard", documented=False, role=ANYONE)
async def index(request: ApiRequest) -> Content:
    file = FILES.find("index.html", accepts_gzip=_accepts_gzip(request))
    return _sent(request, file or _made(_PLAIN_PAGE.encode(), TYPES[".html"]))


@get("/assets/{path:path}", documented=False, role=ANYONE)
async def asset(request: ApiRequest, path: str) -> Content:
    file = FILES.find(path.lstrip("/"), accepts_gzip=_accepts_gzip(request))
    if file is None:
        raise RequestRefused(404, "not_found", f"no file {path} belongs to the dashboard")
    return _sent(request, file)


@get("/favicon.ico", documented=False, role=ANYONE)
async def favicon(request: ApiRequest) -> Content:
    accepts_gzip = _accepts_gzip(request)
    file = FILES.find("favicon.ico", accepts_gzip=accepts_gzip) or FILES.find("favicon.svg", accepts_gzip=accepts_gzip)
    if file is None:
        return ApiResponse(b"", status=204)
    return _sent(request, file)


class ApiDocument:
    """The description of the API, for programs and for people: made once, when the first client asks for it."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make

    @cached_property
    def _document(self) -> dict[str, Any]:
        return self._make()

    @cached_property
    def json(self) -> DashboardFile:
        return _made(msgspec.json.encode(self._document), "application/json")

    @cached_property
    def page(self) -> DashboardFile:
        return _made(docs_page(self._document).encode(), TYPES[".html"])


@get("/openapi.json", documented=False, role=ANYONE)
async def openapi(request: ApiRequest, document: ApiDocument) -> Content:
    return _sent(request, document.json)


@get("/docs", documented=False, role=ANYONE)
async def docs(request: ApiRequest, document: ApiDocument) -> Content:
    return _sent(request, document.page)


@get("/docs.css", documented=False, role=ANYONE)
async def docs_style(request: ApiRequest) -> Content:
    from fleetgate.api.routes.docs_page import STYLE

    return _sent(request, _made(STYLE.encode(), TYPES[".css"]))


def _made(data: bytes, kind: str) -> DashboardFile:
    return DashboardFile(data, kind, f'"{sha256(data).hexdigest()[:24]}"')


def _accepts_gzip(request: ApiRequest) -> bool:
    """Whether the client names gzip among the encodings that it takes, and not with the weight 0."""
    for each in (request.header("accept-encoding") or "").lower().split(","):
        name, _, weight = each.replace(" ", "").partition(";q=")
        if name in ("gzip", "x-gzip"):
            return weight.strip("0.") != "" or weight == ""
    return False


def _sent(request: ApiRequest, file: DashboardFile) -> Content:
    headers = {
        "etag": file.etag,
        "cache-control": "no-cache",
        "content-security-policy": POLICY,
        "vary": "accept-encoding",
    }
    if file.compressed:
        headers["content-encoding"] = "gzip"
    if request.header("if-none-match") == file.etag:
        return ApiResponse(b"", status=304, headers=headers)
    return ApiResponse(file.data, media_type=file.type, headers=headers)
