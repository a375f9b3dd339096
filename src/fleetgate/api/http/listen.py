"""The listening socket of the service: its address, its TLS settings, and the URL that leads to it."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from ipaddress import ip_address

from fleetgate.config.errors import ConfigError, ConfigProblem
from fleetgate.config.file import Loaded
from fleetgate.config.paths import config_path
from fleetgate.config.settings import Settings
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.front.server import tls_context
from fleetgate.gate.liveness import process_identity

BACKLOG = 2048


class CannotListen(FleetgateError):
    """The address cannot be had."""

    exit_code = 69  # EX_UNAVAILABLE


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket with this address. `shared`: other processes of this user may listen there, too."""
    if not 0 <= port <= 65_535:
        raise BadRequest(f"--port {port}: valid is 0 (any that is free) to 65535")
    try:
        # As bytes where that is possible: Python loads much for names that are text.
        family, kind, proto, _, address = socket.getaddrinfo(
            host.encode() if host.isascii() else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise CannotListen(f"--host {host}: there is no such address here ({error})") from error
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.setblocking(False)
        if not shared:
            sock.listen(BACKLOG)  # shared ones listen when they are ready: each gets its own part of the connections
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"port {port} at {host} is taken by another process: "
                "name another with --port, or 0 for any that is free"
            ) from error
        raise CannotListen(f"cannot listen at {host}, port {port}: {error.strerror}") from error
    return sock


def is_loopback(sock: socket.socket) -> bool:
    return ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def tls_settings(loaded: Loaded | None) -> ssl.SSLContext | None:
    """The certificate of the config, if it names one. ConfigError."""
    given = (loaded.settings if loaded is not None else Settings()).serve
    if not given.tls_cert and not given.tls_key:
        return None
    problem = "it needs both `tls_cert` and `tls_key`"
    if given.tls_cert and given.tls_key:
        try:
            return tls_context(os.path.expanduser(given.tls_cert), os.path.expanduser(given.tls_key))
        except OSError as error:  # ssl.SSLError is one
            problem = f"{given.tls_cert} and {given.tls_key} cannot be used: {error.strerror or error}"
    raise ConfigError(ConfigProblem(config_path(), problem, key="[serve]"))


def url_of(sock: socket.socket, tls: ssl.SSLContext | None) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    if host in ("0.0.0.0", "::"):
        host = process_identity.host_name()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
