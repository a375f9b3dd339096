"""The keys of `[serve]`."""

from __future__ import annotations

from fleetgate.config import value_types as v
from fleetgate.config.schema.shapes import Array, Key, Scalar, Table
from fleetgate.config.schema.user_header_keys import USER_HEADER

SERVE = Key(
    "serve",
    Table(
        "`fleetgate serve`",
        (
            Key(
                "host",
                Scalar("address or host name", v.read_listen_address),
                "The address that `fleetgate serve` listens on; `--host` overrides it. Other addresses than "
                "loopback need the token for every request.",
                '"0.0.0.0"',
                '"127.0.0.1"',
            ),
            Key(
                "port",
                Scalar("whole number", v.read_port),
                "The port that it listens on; `--port` overrides it. 0: any free port.",
                "8080",
                "4180",
            ),
            Key(
                "concurrency_token",
                Scalar("true or false", v.read_flag),
                "Whether changes under `/concurrency/` need the token, even on loopback.",
                "true",
                "false",
            ),
            Key(
                "hosts",
                Array("array of names", Scalar("host name", v.read_host_name)),
                "Names by which the service may be called, besides `localhost` and its addresses. "
                "A request for another name is refused.",
                '["gate.example.org"]',
                "none",
            ),
            Key(
                "access_log",
                Scalar("true or false", v.read_flag),
                "Whether the proxy writes a line of JSON for each request to `access.log` in the state folder.",
                "true",
                "true",
            ),
            Key(
                "submit",
                Scalar("true or false", v.read_flag),
                "Whether jobs can be submitted over HTTP, with the token. A client that can submit a job "
                "can run any command as the service's user.",
                "false",
                "only on loopback",
            ),
            Key(
                "local_users",
                Scalar('"self", "group" or "all"', v.read_local_users),
                "Which users of this machine the service trusts on loopback without the token, to read and to "
                'use the keys of this file through the proxy. `"self"`: its own user and root. `"group"`: also '
                'the members of the group that shares the state folder. `"all"`: every user.',
                '"group"',
                '"self"',
            ),
            Key(
                "tls_cert",
                Scalar("path of a PEM file", v.read_tls_file),
                "The certificate with its chain. With it the service speaks only HTTPS. It needs `tls_key`.",
                '"/etc/fleetgate/tls.pem"',
                "plain HTTP",
            ),
            Key(
                "tls_key",
                Scalar("path of a PEM file", v.read_tls_file),
                "The private key of `tls_cert`.",
                '"/etc/fleetgate/tls.key"',
            ),
            USER_HEADER,
        ),
    ),
    "The HTTP service.",
    "{ concurrency_token = true }",
)
