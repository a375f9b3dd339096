"""The keys of `[serve] trust_user_header`: users whom a reverse proxy has signed in (rule E4)."""

from __future__ import annotations

from fleetgate.config import value_types as v
from fleetgate.config.errors import BadValue
from fleetgate.config.schema.shapes import Array, Key, Map, Scalar, Table
from fleetgate.core.model_names import shown

ROLES = ("viewer", "operator", "admin")
_MOST_NAME = 200
# Headers that mean something else already.
_TAKEN = frozenset(
    ("authorization", "connection", "content-length", "content-type", "cookie", "host", "origin", "transfer-encoding")
)


def read_header_name(value: object) -> str:
    """The name of a header, in lower case."""
    valid = 'the name of a header, for example "X-Forwarded-User"'
    if not isinstance(value, str) or not 0 < len(value) <= 100 or not value.isascii():
        raise BadValue(f"found {shown(str(value))}; valid is {valid}")
    name = value.lower()
    if not name.replace("-", "a").isalnum():
        raise BadValue(f"found {shown(value)}; valid is {valid}")
    if name in _TAKEN or name.startswith(("x-fleetgate-", "sec-")):
        raise BadValue(f"{shown(value)} has another meaning already; valid is {valid}")
    return name


def read_peer(value: object) -> str:
    """An address, or a network of them."""
    from ipaddress import ip_network

    try:
        if isinstance(value, str):
            return str(ip_network(value))
    except ValueError:
        pass
    raise BadValue(f'found {shown(str(value))}; valid is an address or a network: "127.0.0.1" or "10.0.0.0/28"')


def read_user_role(value: object) -> str:
    if value not in ROLES:
        raise BadValue(f"found {shown(str(value))}; valid are {', '.join(ROLES)} (an agent needs an access key)")
    return str(value)


def is_user_name(text: str) -> bool:
    """Whether this can be the name of a user: one word, as it is written into the history."""
    word = text
    for char in "._-+@":
        word = word.replace(char, "a")
    return 0 < len(text) <= _MOST_NAME and word.isalnum()


def read_user_name(text: str) -> str:
    if not is_user_name(text):
        raise BadValue(f"{shown(text)}: a user's name has letters, digits and . _ - + @")
    return text


USER_HEADER = Key(
    "trust_user_header",
    Table(
        "table",
        (
            Key(
                "header",
                Scalar("name of a header", read_header_name),
                "The header in which the reverse proxy names the user whom it has signed in.",
                '"X-Forwarded-User"',
                required=True,
            ),
            Key(
                "from",
                Array("array of addresses or networks", Scalar("address or network", read_peer)),
                "The addresses from which the reverse proxy connects.",
                '["127.0.0.1"]',
                required=True,
            ),
            Key(
                "secret_file",
                Scalar("path of a file", v.read_tls_file),
                "A file with a secret of 16 or more characters, which only the service's user can read. The reverse "
                "proxy sends the secret in `X-Fleetgate-Proxy-Secret`: an address proves nothing, since every user of "
                "its machine has it.",
                '"/etc/fleetgate/proxy-secret"',
                required=True,
            ),
            Key(
                "users",
                Map("table of roles", "USER", read_user_name, Scalar("role", read_user_role)),
                "The roles of users: `viewer`, `operator` or `admin`.",
                '{ alice = "admin", bob = "operator" }',
                "none",
            ),
            Key(
                "role",
                Scalar("role", read_user_role),
                "The role of every other user whom the reverse proxy names.",
                '"viewer"',
                "they are refused",
            ),
        ),
    ),
    "Users whom a reverse proxy has signed in ([security](security.md#a-reverse-proxy-that-signs-users-in)).",
    '{ header = "X-Forwarded-User", from = ["127.0.0.1"], secret_file = "/etc/fleetgate/proxy-secret" }',
    "off",
)
