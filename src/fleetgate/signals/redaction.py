"""Command lines without the secrets in them: what is stored and shown of a command is made here.

A command line can hold a key in many ways: `--api-key X`, `env OPENAI_API_KEY=X`, `-H 'Authorization: Bearer X'`, a URL
with a password, a key that shows what it is (`sk-…`, `ghp_…`). Each is replaced by `***`; the rest stays as it is. How
they are found is in secret_patterns.py: it takes milliseconds to load, so only commands that may hold a secret load it.

Arguments that are not UTF-8 reach us as lone surrogates, which no encoder takes. What is stored and shown of them is
made readable here too; what is executed keeps its bytes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MASK = "***"
SHOWN_CHARS = 200
_LOOKED_AT_CHARS = 4096  # of one word, where only its start is shown

# What a text must contain to be worth a closer look; in lower case.
_HINTS = (
    "key", "token", "secret", "pass", "pwd", "auth", "cred", "bearer", "basic", "digest", "negotiate", "cookie", "jwt",
    "pat=", "-pat", "_pat", "pat:", "sig=", "signature", "code=", "pw=", "pin=", "st=", "sv=", "-u", "--user", "sk-",
    "sk_", "pk-", "pk_", "rk-", "rk_", "aiza", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat", "xox", "xapp-",
    "akia", "asia", "gsk_", "hf_", "glpat", "npm_", "r8_", "ya29", "eyj", "-----begin", "xai", "pplx", "nvapi", "fw-",
    "fw_", "sess", "sid", "sg.", "mysql", "mariadb", "redis", "tgp", "dop", "shpat", "shpss", "pypi", "sq0", "fgk_",
)  # fmt: skip


def redact_words(argv: Sequence[str]) -> list[str]:
    """The words of a command, as many as there were, without secrets."""
    if not _may_hold_secrets(argv):
        return list(argv)
    from fleetgate.signals import secret_patterns

    return secret_patterns.redact_words(argv)


def redact_text(text: str) -> str:
    """A text from anywhere (a title, a line of a shell) without secrets."""
    if not _may_hold_secrets((text,)):
        return text
    from fleetgate.signals import secret_patterns

    return secret_patterns.redact_text(text)


def shown_text(text: str, most: int = SHOWN_CHARS) -> str:
    """The start of a text for people: readable and without secrets."""
    if not text:
        return ""
    return readable(redact_text(_start_of_word(text)))[:most]


def shown_command(argv: Sequence[str], most: int = SHOWN_CHARS) -> str:
    """The start of a command line for people: readable and without secrets."""
    text = " ".join(redact_words(_start(argv, most)))
    return readable(text)[:most]


def readable(text: str) -> str:
    """Text that every encoder takes. A byte that was no UTF-8 is shown as `\\xff`: different ones stay different."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        pass
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return text.encode("utf-8", "backslashreplace").decode()


def _may_hold_secrets(words: Iterable[str]) -> bool:
    """A quick look, for the many commands that hold none."""
    for word in words:
        low = word.lower()
        if any(hint in low for hint in _HINTS) or ("://" in low and "@" in low):
            return True
    return False


def _start(argv: Sequence[str], most: int) -> list[str]:
    """The words that can be seen in the first `most` characters after redaction. Long ones end between two words."""
    words: list[str] = []
    length = 0
    for word in argv:
        word = _start_of_word(word)
        words.append(word)
        length += 1 + min(len(word), len(MASK))  # at least this much is left of it
        if length > most:
            break
    return words


def _start_of_word(word: str) -> str:
    """A word as far as it is looked at: it does not end inside a key, for half a key is not known as a key."""
    if len(word) <= _LOOKED_AT_CHARS:
        return word
    cut = word[:_LOOKED_AT_CHARS]
    return cut[: max(map(cut.rfind, " \n\t"))] or "…" if any(blank in cut for blank in " \n\t") else "…"
