"""Users whom a reverse proxy has signed in: `[serve] trust_user_header` (rule E4).

The header with the user's name counts only in a request that comes from an address of the reverse proxy and shows the
secret that it shares with the service. An address alone proves nothing: every user of the proxy's machine has it. In
any other request the header is nothing but a header.

A browser sends its cookies for the reverse proxy along with requests that other pages make. So a change needs the
Origin of our own page, which every browser sends and no other page can.
"""

from __future__ import annotations

import hmac
import os
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from fleetgate.api.errors import RequestRefused
from fleetgate.api.security.caller import Caller
from fleetgate.config.errors import ConfigError, ConfigProblem
from fleetgate.config.paths import config_path
from fleetgate.config.schema.user_header_keys import is_user_name
from fleetgate.config.settings import TrustedHeader
from fleetgate.front.request import ClientRequest
from fleetgate.log.store_files import NotTrusted, read_trusted

SECRET_HEADER = b"x-fleetgate-proxy-secret"
LEAST_SECRET = 16
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))


class ForwardedUsers:
    """Made once for a service, from its config."""

    def __init__(self, trusted: TrustedHeader, secret: bytes) -> None:
        self.header = trusted.header.encode()
        self._secret = secret
        self._peers: list[IPv4Network | IPv6Network] = [ip_network(peer) for peer in trusted.peers]
        self._users = trusted.users
        self._role = trusted.role

    def find(self, request: ClientRequest) -> Caller | None:
        """The user of a request; None where it does not come through the reverse proxy. RequestRefused."""
        secrets = [value for name, value in request.headers if name == SECRET_HEADER]
        if not secrets:
            return None
        if len(secrets) > 1 or not self._is_proxy(request) or not hmac.compare_digest(secrets[0], self._secret):
            raise RequestRefused(
                403, "proxy_wrong", "this is not the reverse proxy that `trust_user_header` under [serve] names"
            )
        names = [value for name, value in request.headers if name == self.header]
        if len(names) != 1 or not names[0].strip():
            told = "two names" if names else "no name"
            raise RequestRefused(401, "user_needed", f"the reverse proxy sends {told} in {self.header.decode()}")
        name = names[0].strip().decode("utf-8", "replace")
        role = self._users.get(name, self._role) if is_user_name(name) else ""
        if not role:
            raise RequestRefused(
                403,
                "user_unknown",
                f"{name[:100]!r} has no role: `users` of `trust_user_header` under [serve] gives one",
            )
        if request.method not in _SAFE and not any(each == b"origin" for each, _ in request.headers):
            raise RequestRefused(
                403,
                "origin_needed",
                "a change through the reverse proxy needs the Origin of the service's own page; "
                "programs use an access key",
            )
        return Caller(role, user=name)

    def _is_proxy(self, request: ClientRequest) -> bool:
        if request.client is None:
            return False
        address = ip_address(request.client[0].partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._peers)


def forwarded_users(trusted: TrustedHeader | None) -> ForwardedUsers | None:
    """What the config says; None: no one is trusted like this. ConfigError where the secret cannot be used."""
    if trusted is None:
        return None
    path = os.path.expanduser(trusted.secret_file)
    try:
        secret = read_trusted(path, os.path.dirname(path) or ".", secret=True, most=4096).strip()
    except NotTrusted as error:
        raise _unusable(f"{path} is not used: {error}") from error
    except OSError as error:
        raise _unusable(f"{path} cannot be read: {error.strerror}") from error
    if len(secret) < LEAST_SECRET:
        raise _unusable(f"{path} is too short: a secret has {LEAST_SECRET} or more characters")
    return ForwardedUsers(trusted, secret)


def _unusable(why: str) -> ConfigError:
    return ConfigError(ConfigProblem(config_path(), f"secret_file {why}", key="[serve] trust_user_header"))
