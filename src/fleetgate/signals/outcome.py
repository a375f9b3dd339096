"""The outcome of a call or of a process: one of eight kinds, its scope, and its evidence.

The rule kept here: no outcome carries a secret, and no evidence is longer than a line. `outcome()` is the way to make
one: it puts in the scope that goes with the kind and cleans what was seen. No other code calls `Outcome(...)` with text
from outside.
"""

from __future__ import annotations

import re
from itertools import groupby

from msgspec import Struct

from fleetgate.core.usage import Reading

RATE_LIMITED = "rate_limited"
USAGE_WINDOW = "usage_window"
QUOTA = "quota"
OVERLOADED = "overloaded"
AUTH = "auth"
SERVER_ERROR = "server_error"
LOCAL_ERROR = "local_error"

LIMITS = (RATE_LIMITED, USAGE_WINDOW, QUOTA, OVERLOADED, AUTH)  # the provider refused, and it is not the agent's fault
KINDS = ("ok", RATE_LIMITED, USAGE_WINDOW, QUOTA, OVERLOADED, AUTH, SERVER_ERROR, LOCAL_ERROR)

# The scope of a backoff of this kind, when nothing more precise is known (rule B1).
DEFAULT_SCOPES = {
    "ok": "",
    RATE_LIMITED: "model",
    USAGE_WINDOW: "account",
    QUOTA: "account",
    OVERLOADED: "model",
    AUTH: "account",
    SERVER_ERROR: "model",
    LOCAL_ERROR: "",
}

EVIDENCE_CHARS = 300
_LOOKED_AT_CHARS = 4096


class Outcome(Struct, frozen=True, omit_defaults=True):
    """How a lease ended, as far as it concerns others."""

    kind: str  # one of KINDS
    scope: str = ""  # "model", "family", "account", or "" for none
    family: str = ""  # with scope "family": a glob over model names, such as `claude-opus-*`
    wait_ms: int | None = None  # what the provider hinted at, from now; never negative
    rule: str = ""  # which rule fired, such as `anthropic.429.rate_limit_error`
    evidence: str = ""  # what was seen: one line, at most 300 characters, without secrets
    named: bool = False  # of a rate limit: the provider itself says that it is about `scope`
    rate: str = ""  # of a rate limit: the unit of the rate that it means, where it names one (rule V8)
    readings: tuple[Reading, ...] = ()  # the provider's rates, as far as the refusal tells

    @property
    def held_back(self) -> str:
        """The scope that is held back: after a rate limit whose subject the provider does not name, the model."""
        return "model" if self.kind == RATE_LIMITED and not self.named else self.scope


OK = Outcome("ok")


def outcome(
    kind: str,
    rule: str,
    seen: str = "",
    *,
    wait_ms: int | None = None,
    scope: str = "",
    family: str = "",
    named: bool = False,
) -> Outcome:
    """An outcome with the scope of its kind (a family wins), a wait that is not negative, and clean evidence."""
    if family:
        scope = "family"
    return Outcome(
        kind,
        scope or DEFAULT_SCOPES[kind],
        family,
        None if wait_ms is None else max(0, wait_ms),
        rule,
        evidence_of(seen),
        named,
    )


def evidence_of(text: str) -> str:
    """Text from outside, fit to be stored and shown."""
    return shorten(cut_secrets(text))


def shorten(text: str, limit: int = EVIDENCE_CHARS) -> str:
    """One line of at most `limit` characters; what is left out shows as an ellipsis."""
    line = " ".join(text[: 16 * limit].split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


# --- secrets ---------------------------------------------------------------------------------------------------

MASK = "***"

# In the order in which they are cut out. As text: compiled when the first evidence is taken, not on import.
_SECRETS = (
    (r"(?<=://)[^/\s@?#]+@", MASK + "@"),
    (r"(?i)(\bcookie[\"'\\]{0,4}\s{0,3}[:=]\s{0,3}[\"'\\]{0,4})[^\"'\\]+", rf"\1{MASK}"),
    # What stands under a telling name: a header, a variable, a field of JSON, also with its quotes escaped.
    (
        (
            r"(?i)((?:api[-_ ]?key|authorization|(?:access|refresh|auth|id|session|security)[-_]?token"
            r"|secret|passw(?:or)?d|credentials?|signature)[\"'\\]{0,4}\s{0,3}[:=]\s{0,3}[\"'\\]{0,4})"
            r"(?:(?:bearer|basic|token|digest|key)\s+)?[^\s\"'\\,;&})\]]+"
        ),
        rf"\1{MASK}",
    ),
    # Also the word after them in prose, which is no loss.
    (r"(?i)\b(bearer|basic)\s+[\w.~+/=*%-]{8,}", rf"\1 {MASK}"),
    (r"(?i)([?&;\s](?:key|token|sig|pwd)=)[^\s&#\"'\\;,]+", rf"\1{MASK}"),
    (r"(?<![\w-])eyJ[\w-]{6,}(?:\.[\w-]*){1,4}", MASK),
    # Keys that show what they are. Stars and dots: providers quote a refused key with its middle left out.
    (
        (
            r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|csk|sess|pplx|xai|nvapi|fw|glpat)[-_][\w*.…-]{6,}"
            r"|(?:gsk|hf|r8|tgp|ghp|gho|ghu|ghs|ghr|github_pat|npm)_[\w*.…-]{6,}"
            r"|AIza[\w*.…-]{6,}|ya29\.[\w.-]{6,}|xox[a-z]-[\w-]{6,}|(?:AKIA|ASIA)[0-9A-Z]{12,})"
        ),
        MASK,
    ),
)
_SHORTEST = 6  # no secret is shorter, with the name before it
_LONG = r"[\w+/-]{32,}={0,2}"
_READABLE = (
    r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"  # a UUID
    r"|(?:req|request|msg|resp|chatcmpl|gen|ses)[-_][0-9A-Za-z]{8,48}"
)
_WORD = r"[A-Z]?[a-z]*[0-9]{0,4}[a-z]*[0-9]{0,2}|[A-Z]+|[0-9]{1,8}[a-z]*"


_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)"


def cut_secrets(text: str) -> str:
    """The text without keys, credentials, long random strings and control characters.

    Errs on the side of cutting. Only the first 4096 characters are looked at, and no more are given back.
    """
    text = _start_of(text)
    if not text.isprintable():
        # Each piece between control characters by itself, or what stands before could hide the beginning of a key: as
        # it is, and without escape sequences. And then all together, since a key may be broken by them.
        text = _masked_in_pieces(text)
        text = _masked_in_pieces(re.sub(_ESCAPES, "\0", text, flags=re.DOTALL))
    return _masked(_printable(text))


def _masked_in_pieces(text: str) -> str:
    pieces = (("".join(piece), printable) for printable, piece in groupby(text, str.isprintable))
    return "".join(_masked(piece) if printable and len(piece) >= _SHORTEST else piece for piece, printable in pieces)


def _masked(text: str) -> str:
    for pattern, mask in _SECRETS:
        text = re.sub(pattern, mask, text)
    return re.sub(_LONG, _unless_readable, text)


def _start_of(text: str) -> str:
    """The part that is looked at: it does not end inside a word, for half a key is not known as a key."""
    if len(text) <= _LOOKED_AT_CHARS:
        return text
    words = text[:_LOOKED_AT_CHARS].rsplit(maxsplit=1)
    return words[0] if len(words) == 2 else ""


def _printable(text: str) -> str:
    """Without characters that steer a terminal or hide text; white space becomes a space."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)


def _unless_readable(match: re.Match[str]) -> str:
    """Keeps ids of requests, and long names such as `GenerateRequestsPerDayPerProjectPerModel-FreeTier`."""
    run = match.group()
    if re.fullmatch(_READABLE, run) or not any(c.isdigit() for c in run):
        return run
    return run if all(re.fullmatch(_WORD, part) for part in re.split(r"[/_+=-]", run)) else MASK
