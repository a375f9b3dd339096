"""The caller of a request: its role, and what its access key allows (rules E1, E2).

The service's token, and a browser that it signed in, may do everything. A local user whom the service trusts may read.
An access key has a role of its own, and so has a user whom a reverse proxy has signed in. The key of an agent works for
one project only, and sees nothing of others.
"""

from __future__ import annotations

from typing import NamedTuple

from fleetgate.api.errors import RequestRefused
from fleetgate.core.access.keys import ADMIN, AGENT, OPERATOR, VIEWER, AccessKey
from fleetgate.core.model_names import shown
from fleetgate.core.state.state import State
from fleetgate.gate.serving.client_renewals import not_in_project

ANYONE = ""  # a route for every caller that the guard lets pass
# Which roles may do what needs a role. An agent does not read what other projects do.
_ALLOWED = {
    ANYONE: frozenset(("", VIEWER, AGENT, OPERATOR, ADMIN)),
    VIEWER: frozenset((VIEWER, OPERATOR, ADMIN)),
    AGENT: frozenset((AGENT, OPERATOR, ADMIN)),
    OPERATOR: frozenset((OPERATOR, ADMIN)),
    ADMIN: frozenset((ADMIN,)),
}


class Caller(NamedTuple):
    """What a client may do. Without a role, it sees only what is public."""

    role: str
    key: AccessKey | None = None
    user: str = ""  # a user whom a reverse proxy has signed in
    label: str = ""  # what a caller without either is called in the history

    @property
    def may_change(self) -> bool:
        """Whether the dashboard offers changes."""
        return self.role in _ALLOWED[OPERATOR]

    @property
    def may_submit(self) -> bool:
        return self.role in _ALLOWED[AGENT]

    @property
    def project(self) -> str:
        """The only project that it may work for; "" for any."""
        return self.key.project if self.key is not None and self.role == AGENT else ""

    @property
    def author(self) -> str:
        """Its name in the history (rule E3)."""
        if self.key is not None:
            return f"key {self.key.name}"
        return f"user {self.user}" if self.user else self.label

    def must_be(self, role: str) -> None:
        """Refuse what needs another role."""
        if self.role in _ALLOWED[role]:
            return
        if self.key is None and not self.user:
            raise RequestRefused(
                401, "token_needed", "this needs the token, an access key, or a browser that `fleetgate open` signed in"
            )
        raise RequestRefused(
            403, "role_needed", f"this needs the role {role}; the {self.author} has the role {self.role}"
        )

    def must_read(self) -> None:
        """Refuse what is neither for readers of everything, nor shown of one project."""
        if not self.project:
            self.must_be(VIEWER)

    def owns(self, state: State, ident: str) -> bool:
        """Whether it may see the lease or ticket with this id. For one project, only a whole id counts: what the
        beginning of an id means would tell about those of others."""
        if not self.project:
            return True
        lease = state.leases.get(ident)
        ticket = state.tickets.get(ident) if lease is None else lease.ticket
        return ticket is not None and ticket.spec.project == self.project

    def must_own(self, state: State, ident: str) -> None:
        """Refuse a lease or ticket of another project, with the same words as one that does not exist."""
        if not self.owns(state, ident):
            raise not_in_project(ident, self.project)

    def project_for(self, given: str) -> str:
        """The project of a request, where the client names `given` or nothing."""
        project = self.key.project if self.key is not None else ""
        if self.project and given and given != project:
            raise RequestRefused(
                403, "role_needed", f"the key {self.named_key} works for the project {project}, not for {shown(given)}"
            )
        return given or project

    @property
    def named_key(self) -> str:
        return "" if self.key is None else self.key.name

    def class_for(self, given: str | None) -> str | None:
        """The class of a request: that of the key, if it has one."""
        return self.key.work_class if self.key is not None and self.key.work_class else given

    def priority_for(self, given: int) -> int:
        """The priority of a request, at most that of the key."""
        return given if self.max_priority is None else min(given, self.max_priority)

    @property
    def max_priority(self) -> int | None:
        """The highest priority that its requests may have; None: any. Then a request may also name its age, which
        counts like a priority."""
        return None if self.key is None else self.key.max_priority


PUBLIC = Caller("")
OWNER = Caller(ADMIN, label="owner")
READER = Caller(VIEWER, label="a local user")
LOCAL_OPERATOR = Caller(OPERATOR, label="a local user")
