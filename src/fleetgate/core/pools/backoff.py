"""Backoffs: "do not use this model (or family, or account) until then", with its cause (rules B1 to B3).

A key is a model (`anthropic/claude-opus-4-6`), a family (`anthropic@work/claude-opus-*`) or an account
(`anthropic@work`; without an account the default one is meant). A long one admits a *probe* after a while: one
ticket, while the others wait for its verdict.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from fleetgate.core.errors import BadName
from fleetgate.core.model_names import DEFAULT_ACCOUNT, Model, account_of, canonical, glob, parse_selector

CAUSES = ("rate_limited", "usage_window", "quota", "overloaded", "auth", "server_error")
NEEDS_A_PERSON = ("auth", "quota")
_DEFAULT_MS = {"rate_limited": 60_000, "auth": 3_600_000, "quota": 3_600_000}
_OTHER_MS: Final = 300_000
MOST_MS: Final = 35 * 86_400_000
PROBE_AFTER_MS: Final = 6 * 3_600_000
NO_CREDENTIAL: Final = "none"  # instead of a refused credential: there was none
VERDICT_MS: Final = 60_000  # a probe that has not failed for this long has succeeded
# For a call that was refused without a hint: the first time, doubled each time, and the maximum.
_FIRST_MS = {"rate_limited": 1_000, "overloaded": 1_000, "usage_window": 10_000}
_LONGEST_MS = {"rate_limited": 60_000, "overloaded": 60_000, "usage_window": 300_000}
LINGER_MS: Final = 60_000  # a backoff of refused calls that no call tries out ends this long after its time


class Backoff(Struct, omit_defaults=True):
    """One key that must not be used."""

    key: str
    scope: str  # model, family, account
    reason: str
    since: int
    until: int
    evidence: str = ""
    credential: str = ""  # salted hash of the credential that was refused
    manual: bool = False
    probing: str = ""  # the lease that tries it out
    identity: str = ""  # whose account that credential names, as `kind:salted hash`; "": unknown
    times: int = 0  # calls refused in a row; a backoff of calls is tried out by one call before the others go

    @property
    def ends_at(self) -> int:
        """When time alone ends it, if no probe does so earlier."""
        return self.until + LINGER_MS if self.times else self.until

    def is_over(self, now: int) -> bool:
        """Whether its time has passed; its end is not recorded yet, or it waits for a call that tries it out."""
        return now >= self.until and not self.must_probe and not self.probing

    @property
    def must_probe(self) -> bool:
        """Whether it ends by a probe, not by time alone: a quota is not back because an hour has passed."""
        return self.reason == "quota" and not self.manual

    @property
    def probe_at(self) -> int:
        """From when on one ticket is admitted."""
        return self.until if self.must_probe else min(self.since + PROBE_AFTER_MS, self.until)

    def lets_probe(self, now: int) -> bool:
        return not self.probing and now >= self.probe_at


def default_ms(reason: str) -> int:
    """How long without a hint."""
    return _DEFAULT_MS.get(reason, _OTHER_MS)


def grows(reason: str) -> bool:
    """Whether refused calls are tried again sooner at first, and later each time."""
    return reason in _FIRST_MS


def grown_ms(reason: str, times: int) -> int:
    """How long after this many refusals in a row, where the provider gives no time or a wrong one."""
    return min(_FIRST_MS[reason] << min(times - 1, 16), _LONGEST_MS[reason])


def parse_key(text: str) -> tuple[str, str]:
    """A key in its one form, and its scope. Raises BadName."""
    selector = parse_selector(text)
    if selector.scope != "model" or "*" in selector.provider or "*" in selector.account:
        raise BadName(f"not a model or account: {text!r}; valid is provider, provider@account, or either with /model")
    at = "" if selector.account in ("", DEFAULT_ACCOUNT) else f"@{selector.account}"
    key = f"{selector.provider}{at}" + (f"/{selector.name}" if selector.name else "")
    return key, "account" if not selector.name else "family" if "*" in selector.name else "model"


def ended_by(backoff: Backoff, digest: str, identity: str) -> str:
    """Why a backoff is over when its account has this credential now (rule B3); "" when it is not.

    A rate limit does not end because a token was refreshed; but it ends if the credential names another account now.
    A credential has one hash for each place that holds something: one that was not refused is new. One that went away
    proves nothing.
    """
    if not backoff.manual and _is_another(backoff.identity, identity):
        return "account"
    refused = backoff.credential if backoff.reason == "auth" else ""
    known = refused.split(",")
    is_new = bool(refused) and any(part not in known for part in digest.split(",") if part and part != NO_CREDENTIAL)
    return "credential" if is_new else ""


def _is_another(before: str, now: str) -> bool:
    """Whether two identities are known to differ: identities of different kinds cannot be compared."""
    return before != now and before.partition(":")[0] == now.partition(":")[0]


def concerns(key: str, model: Model) -> bool:
    """Whether a backoff of this key holds back this model."""
    account, slash, name = key.partition("/")
    return canonical(account) == canonical(account_of(model)) and (not slash or glob(name, model.name))
