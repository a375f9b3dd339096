"""One request of a client and its outcome: filled in on its way, reported in headers and the access log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from fleetgate.core.access.keys import AccessKey
from fleetgate.core.usage import Reading, Usage
from fleetgate.gate.library.usage_arguments import UNUSED
from fleetgate.gate.serving.model_calls import PendingCall
from fleetgate.proxy.calls.early_stream import EarlyStream
from fleetgate.proxy.calls.response_reader import ResponseReader
from fleetgate.proxy.headers import CallHeaders
from fleetgate.proxy.providers import ProxiedProvider
from fleetgate.proxy.request_body import CallFields, RequestBody
from fleetgate.proxy.routes import Route
from fleetgate.proxy.unproven_keys import TrialPlace
from fleetgate.signals.outcome import Outcome


def _is_not() -> bool:
    return False


class CallCandidate(NamedTuple):
    """Whom a request may be sent to: with another model's name, or with a key of ours."""

    upstream: ProxiedProvider
    name: str  # empty: as the client has it
    key: str  # empty: the client's own
    own: bool  # what is sent is the credential of the account that is asked: if it is refused, the account is
    login: bool = False  # the key is the account's login, which is read when the call is sent


class Exchange:
    """A request of a client."""

    __slots__ = (
        "access_key",
        "access_key_name",
        "account",
        "apart",
        "api",
        "attempts",
        "began",
        "body",
        "by_own_user",
        "bytes_sent",
        "candidates",
        "client",
        "conversation",
        "done",
        "early",
        "error",
        "fields",
        "first_byte_s",
        "gone",
        "guards",
        "headed_at",
        "headers",
        "hold_s",
        "key",
        "lease",
        "login_lock",
        "login_sent",
        "logins_refused",
        "method",
        "model",
        "model_in_path",
        "models",
        "name",
        "outcome",
        "own",
        "path",
        "pending",
        "place",
        "priority",
        "project",
        "query",
        "queue_s",
        "queued_at",
        "reader",
        "readings",
        "roams",
        "route",
        "run",
        "run_model",
        "secret",
        "session",
        "set_accounts",
        "shows_token",
        "since",
        "status",
        "trusted",
        "unproven",
        "upstream",
        "upstream_s",
        "usage",
        "uses_set",
        "waiting_for_client",
        "waiting_since",
        "work_class",
    )

    def __init__(self, method: str, query: bytes, route: Route, upstream: ProxiedProvider, body: RequestBody) -> None:
        self.began = perf_counter()
        self.method = method
        self.path = route.rest  # the part for the provider
        self.query = query
        self.route = route
        self.upstream = upstream  # of the attempt under way
        self.api = upstream.api
        self.headers: CallHeaders
        self.body = body
        self.trusted = False  # the client may use the keys of the config
        self.by_own_user: Callable[[], bool] = _is_not  # whether the client is of the service's own user
        self.shows_token = False  # the client brought the service's own token
        self.access_key: AccessKey | None = None  # that the client brought
        self.access_key_name = ""  # of that key, or of the key that the run was requested with: its caps count
        self.key = ""  # to be sent instead of the client's own
        self.own = False  # what is sent is the account's own credential
        self.secret = ""  # the client's own key
        self.account = ""
        self.roams = False  # it brought the login of an account of a set, and may use the others
        self.logins_refused = 0  # of accounts whose login it was sent with
        self.login_sent = False  # the attempt under way has the login of an account, read from its file
        self.unproven = False  # the client's key is of no account yet: the provider has yet to accept it
        self.apart = False  # until then it stays out of the queue
        self.login_lock: asyncio.Lock | None = None  # held meanwhile, where its answer shows whose login it is
        self.guards: dict[str, str] = {}  # leases of the accounts that its key may be of, held meanwhile
        self.place: TrialPlace | None = None  # held meanwhile
        self.fields = CallFields()
        self.name = ""  # of the model, as the client has it
        self.model_in_path = False
        self.run = ""  # the lease of the run that it belongs to
        self.run_model = ""
        self.candidates: dict[str, CallCandidate] = {}  # by model; the first is the one requested
        self.models: tuple[str, ...] = ()  # what is asked for: the candidates, with a set of accounts as one
        self.uses_set = False  # the gate chooses its account
        self.set_accounts: tuple[str, ...] = ()  # of the set, those that may be used, where not all
        self.conversation = ""  # what it belongs to
        self.client = ""
        self.session = ""  # of the agent that calls
        self.project = "default"
        self.work_class: str | None = None  # what it says, or its run; None: what the config says of its project
        self.priority = 0
        self.hold_s = 0.0
        self.since = 0
        self.pending: PendingCall | None = None  # in the queue
        self.queued_at = 0.0
        self.lease = ""  # held now
        self.model = ""  # as the gate knows it
        self.attempts = 0
        self.queue_s = 0.0  # waited in the queue or for a rate limit to end
        self.upstream_s = 0.0  # from the last attempt to the head of its answer
        self.first_byte_s = 0.0
        self.waiting_since = 0.0  # for the provider's next byte, or for the client to take one; 0: for neither
        self.waiting_for_client = False
        self.status = 0
        self.bytes_sent = 0
        self.outcome: Outcome | None = None
        self.usage: Usage | None = UNUSED  # of the attempt under way; None: not known, it may have been used
        self.reader: ResponseReader | None = None  # of the response that is passed on; it knows the usage then
        self.readings: tuple[Reading, ...] = ()  # the provider's rates, not reported yet
        self.headed_at = 0.0  # when the head of the response came
        self.error = ""
        self.gone = False  # the client has left
        self.early: EarlyStream | None = None  # its answer may begin before the provider's
        self.done = False  # the last byte was handed over
