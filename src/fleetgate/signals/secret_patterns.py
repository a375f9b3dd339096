"""The secrets in a command line: where they begin and end. Use them through redaction.py, which loads this if need be.

Two rules find secrets. A *name* that says secret (`api-key`, `DB_PASSWORD`, `X-Auth-Token`) hides the value that
follows it; names that only talk about secrets (`max-tokens`, `token-file`, `author`) hide nothing. A *shape* that only
keys have is hidden wherever it stands. Every step takes time in proportion to the length of the text, whatever the text
is: patterns either have a fixed length or cannot try the same character twice.
"""

from __future__ import annotations

import re
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MASK = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Parts of a name that say secret; also at the end of a part, as in PGPASSWORD.
_ENDS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "credential", "credentials")
_SECRET = _words(
    "token secret secrets password passwords passwd passphrase passcode pwd pass auth authorization authentication "
    "credential credentials cred creds bearer jwt cookie cookies apikey apikeys accesskey secretkey privatekey authkey "
    "oauth xauth basicauth userpass sshpass pat signature"
)
# `…-key` is a secret, unless one of these stands before it.
_OPEN_KEYS = _words(
    "public primary foreign sort partition cache idempotency hot shortcut group row index map lookup range hash host "
    "object dedup dedupe routing answer translation message storage"
)
# A name is harmless when such a part follows the one that says secret: it is about the secret, and is not it.
_ABOUT = _words(
    "file files path dir folder limit limits count counts type types name names method mode url uri endpoint env var "
    "budget size length len ttl timeout expiry expires expiration id ids usage cost price policy provider header "
    "prefix format window bucket store helper manager command cmd source scheme rate ratio threshold estimate encoding "
    "vocab model port host realm domain required enabled disabled only check retry retries refresh version backend "
    "plugin per second minute day min max stream callback alias field column scope scopes issuer audience algorithm"
)
# The same for a part before it: `--no-auth` takes no value, and the value of `--max-token` is a number.
_WITHOUT = _words("no without skip disable enable")
_NUMBER_OF = _words("max min num n total count per next last first eos bos pad stop special")
_TOKENS_OF = _words("access auth api refresh bearer secret session id personal")

# Names whose value is a secret only if it looks like one: `--key nightly` does not.
_PERHAPS = _words("key keys session sid")
# Programs that take a password behind a short option, in the same word; True: also as the next word.
_PROGRAMS = {
    "sshpass": ("-p", True),
    "redis-cli": ("-a", True),
    "mysql": ("-p", False),
    "mysqldump": ("-p", False),
    "mysqladmin": ("-p", False),
    "mariadb": ("-p", False),
}

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# A name and what separates it from its value. Each run of name characters is read once.
_NAMED = re.compile(
    r"""(?<![\w.\-])(?P<name>[\w.\-]++)"""
    r"""(?:(?P<sign>["'\\\]]{0,4}[ \t]{0,3}(?:=>|:=|[:=])\s{0,8})|(?P<blank>[ \t]{1,8}(?=[^\s=:])))"""
)
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|digest|negotiate|apikey|key)[ \t]{1,3}")
_BARE = re.compile(r"""(?:[^\s"'\\;&|<>]|\\[^"'])++""")
_GOES_ON = re.compile(r"""[^\s,;&|<>})\]:]""")  # a value goes on behind a quote that ends
_VALUE = re.compile(r"""["'\\]{0,4}[^\s"'\\;&|<>]{14,200}+""")
_QUOTE = re.compile(r"""(?:\\{0,3}["'])""")
_SCHEMES = ("bearer", "basic", "digest", "negotiate")
_LINE = re.compile(r"""[^"'\r\n]*+""")
_WHOLE_LINE = frozenset(("authorization", "proxy-authorization", "cookie", "set-cookie"))
_OPTION = re.compile(r"-{1,2}[a-z][a-z-]*+\Z")
_SCRIPT = re.compile(r"-[a-z]{0,3}c\Z")  # sh -c, bash -lc
_USER = frozenset(("-u", "--user", "--proxy-user", "-U"))
_USER_PART = re.compile(r"""(?<!\S)(-u|-U|--user|--proxy-user)([ \t=]{1,3}["']?)([^\s:"']++):([^\s"']++)""")
_QUERY = re.compile(r"(?i)([?&;](?:key|sig|signature|code|pw|pass|pin|st|sv)=)[^\s&#\"'\\;]++")
_USERINFO = re.compile(r"(?<=://)[^/\s?#\"'\\]*@")
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}-----(?:[^-]++|-(?!----END))*+(?:-----END [A-Z0-9 ]{0,40}-----)?")
_CREDENTIAL = re.compile(r"(?i)\b(bearer|basic|digest|negotiate|token|api-?key)([ \t:]{1,3})([\w.~+/=*%-]{6,}+)")
_JSON = re.compile(r"""[{\[]\s{0,8}\\{0,3}["'{\[\]}]""")
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?P<sk>(?:sk|pk|rk|csk|sess)[-_][\w*-]{6,}+)"
    r"|(?P<other>(?:pplx|xai|nvapi|fw|tgp|dop|pypi|shpat|shpss|sq0[a-z]{3})[-_][\w*-]{12,}+)"
    r"|(?:gh[pousr]_[A-Za-z0-9]{6,}+|github_pat_\w{6,}+|glpat-[\w-]{6,}+|xox[a-z]-[\w-]{6,}+|xapp-[\w-]{6,}+"
    r"|SG\.[\w-]{10,}+\.[\w-]{10,}+|gsk_\w{12,}+|(?:hf|r8|npm)_[A-Za-z0-9]{16,}+"
    r"|AIza[\w-]{10,}+|ya29\.[\w.-]{6,}+|(?:AKIA|ASIA)[0-9A-Z]{8,}+"
    r"|fgk_[\w-]{6,}+"  # our own access keys
    r"|eyJ[\w-]{6,}+(?:\.[\w-]*+){1,4})"
    r")"
)
_AWS = re.compile(r"(?<![A-Za-z0-9/+])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")
_AWS_ID = re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[0-9A-Z]{8,}")
_RANDOM = re.compile(r"[A-Za-z0-9]{10,}+")


def redact_words(argv: Sequence[str]) -> list[str]:
    """The words of a command, as many as there were, without secrets."""
    words: list[str] = []
    named = user = script = False  # whether the word before says that a secret, user:password or a script comes next
    with_aws = any(_AWS_ID.search(word) for word in argv if "AKIA" in word or "ASIA" in word)
    own, apart = next(
        (_PROGRAMS[name] for word in argv[:8] if (name := word.rpartition("/")[2]) in _PROGRAMS), ("", False)
    )
    before = ""
    for word in argv:
        if named and not _OPTION.match(word):
            words.append(MASK if word else word)
        elif script:
            words.append(_redact_text(word, with_aws))
        elif own and word.startswith(own) and word != own:
            words.append(own + MASK)
        elif before == "--key" and looks_secret(word):
            words.append(MASK)
        else:
            words.append(_user_part(word) if user else _redact_word(word, with_aws))
        was_value = named and words[-1] == MASK
        named = not was_value and (_announces(word) or (apart and word == own))
        before = word
        user, script = word in _USER, bool(_SCRIPT.match(word))
    return words


def _announces(word: str) -> bool:
    """Whether the next word is the secret that this option says."""
    return word.startswith("-") and "=" not in word and not _has_blank(word) and says_secret(word)


def looks_secret(value: str) -> bool:
    """Whether a value looks random: long, of letters and digits in both cases, or of hex digits."""
    return any(
        len(run) >= 32
        or (len(run) >= 14 and any(map(str.isdigit, run)) and any(map(str.isupper, run)) and any(map(str.islower, run)))
        for run in _RANDOM.findall(value[:4096])
    )


def redact_text(text: str) -> str:
    """A text from anywhere (a title, a line of a shell) without secrets."""
    return _redact_text(text, with_aws=bool(_AWS_ID.search(text)))


def says_secret(name: str) -> bool:
    """Whether the name of an option, a variable, a header or a field says that its value is a secret."""
    return _says_secret(name) if len(name) <= 200 else _says_secret(name[-200:])


@lru_cache(maxsize=512)
def _says_secret(name: str) -> bool:
    parts = [part.lower() for part in _PART.findall(name)]
    last = next((part for part in reversed(parts) if not part.isdigit()), "")
    if last in _ABOUT:
        return False
    return any(_is_secret(part, parts[at - 1] if at else "") for at, part in enumerate(parts))


def _is_secret(part: str, before: str) -> bool:
    if before in _WITHOUT:
        return False
    if part in ("key", "keys"):
        return bool(before) and before not in _OPEN_KEYS and not before.isdigit()
    if part == "tokens":
        return before in _TOKENS_OF
    return (part in _SECRET or part.endswith(_ENDS)) and not (part in ("token", "pass") and before in _NUMBER_OF)


def _has_blank(text: str) -> bool:
    return " " in text or "\n" in text or "\t" in text


def _redact_word(word: str, with_aws: bool) -> str:
    """One argument. All that follows the `=` of `NAME=…` is the value, blanks and quotes too."""
    name, equals, _ = word.partition("=")
    if equals and name and not _has_blank(name) and _PLAIN_NAME.match(name) and says_secret(name):
        return f"{name}={MASK}"
    name, colon, rest = word.partition(":")
    if colon and _PLAIN_NAME.match(name) and says_secret(name):
        line, newline, more = rest.partition("\n")
        if line.strip():
            return f"{name}: {MASK}{newline}{_redact_text(more, with_aws)}"
    return _redact_text(word, with_aws)


_PLAIN_NAME = re.compile(r"[\w.\-:]++\Z")


def _user_part(word: str) -> str:
    user, colon, password = word.partition(":")
    return f"{user}:{MASK}" if colon and password and not _is_group(user, password) else word


def _user_option(found: re.Match[str]) -> str:
    return found.group() if _is_group(found[3], found[4]) else f"{found[1]}{found[2]}{found[3]}:{MASK}"


def _is_group(user: str, other: str) -> bool:
    """Whether `user:other` is a user and a group, both by number."""
    return user.isdigit() and other.isdigit()


def _redact_text(text: str, with_aws: bool) -> str:
    if "-----BEGIN" in text:
        text = _PEM.sub(MASK, text)
    if "://" in text:
        text = _USERINFO.sub(_userinfo, text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    text = _USER_PART.sub(_user_option, text)
    text = _redact_named(text)
    text = _CREDENTIAL.sub(_credential, text)
    text = _SHAPES.sub(_shape, text)
    return _AWS.sub(_aws, text) if with_aws else text


def _redact_named(text: str) -> str:
    """Cut what follows a name that says secret: `NAME=…`, `name: …`, `"name": "…"`, `--name …`."""
    pieces, done, at = [], 0, 0
    while (found := _NAMED.search(text, at)) is not None:
        at = found.end()
        name = found["name"]
        if found["sign"] is None and not name.startswith("-"):
            continue
        if not says_secret(name) and not (name.lower().lstrip("-") in _PERHAPS and _perhaps(text, at)):
            continue
        if _JSON.match(text, at):
            continue  # what is in it has names of its own
        end = _end_of_value(text, at, whole_line=name.lower().lstrip("-") in _WHOLE_LINE)
        if end > at and text[at:end] != MASK:
            pieces.append(text[done:at] + MASK)
            done = end
        at = max(at, end)
    return "".join(pieces) + text[done:] if pieces else text


def _perhaps(text: str, at: int) -> bool:
    """Whether what stands here looks like a secret by itself."""
    found = _VALUE.match(text, at)
    return found is not None and looks_secret(found.group())


def _end_of_value(text: str, at: int, *, whole_line: bool) -> int:
    if whole_line and _QUOTE.match(text, at) is None:
        found = _LINE.match(text, at)
        return at if found is None else found.end()
    scheme = _SCHEME.match(text, at)
    end = at if scheme is None else scheme.end()
    while end < len(text):
        quote = _QUOTE.match(text, end)
        if quote is None:
            found = _BARE.match(text, end)
            if found is None:
                break
            end = found.end()
        else:
            closed = text.find(quote.group(), quote.end())
            end = len(text) if closed < 0 else closed + len(quote.group())
            if not _GOES_ON.match(text, end):
                break
    return end


def _userinfo(found: re.Match[str]) -> str:
    return found.group() if found.group() in ("git@", "hg@") else f"{MASK}@"


def _credential(found: re.Match[str]) -> str:
    """`Bearer X`. A plain word behind it is prose: "basic understanding"."""
    value = found[3]
    if found[1].lower() not in _SCHEMES and not looks_secret(value):
        return found.group()
    if value.strip("*") == "" or (len(value) < 20 and value.isalpha() and (value.islower() or value.istitle())):
        return found.group()
    return f"{found[1]}{found[2]}{MASK}"


def _shape(found: re.Match[str]) -> str:
    """A key by its look. `sk-learn` and `xai-grok-2-vision` are names, not keys."""
    text = found.group()
    if found["sk"] is not None:
        rest = text.partition("-" if "-" in text[:5] else "_")[2]
        plain = rest.islower() and not any(char.isdigit() for char in rest) and len(rest) < 24
        return text if plain or rest.startswith("learn") else MASK
    return text if found["other"] is not None and not _looks_random(text) else MASK


def _looks_random(text: str) -> bool:
    for run in _RANDOM.findall(text):
        if any(char.isdigit() for char in run) and any(char.isalpha() for char in run):
            return True
        if len(run) >= 16 and not (run.islower() or run.isupper()):
            return True
    return False


def _aws(found: re.Match[str]) -> str:
    text = found.group()
    return text if text.islower() or text.isupper() or text.isdigit() else MASK
