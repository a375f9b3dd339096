"""A path that names no provider that is known, but is meant for one: mistyped, not configured, or left out.

Its client is an SDK, which reads errors in the shape of its own provider. So the shape is that of the API which the
path suggests, and the sentence names the nearest provider, and where to configure one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fleetgate.core.model_names import names_of
from fleetgate.proxy.errors import ProxyRefusal
from fleetgate.proxy.routes import split_names
from fleetgate.signals.redaction import shown_text

# What the paths of each API have in them, behind the provider's name.
_ANTHROPIC = re.compile(rb"/v1/(?:messages|complete)(?:/|$)")
_GEMINI = re.compile(rb"/v1(?:beta|alpha)\d*/|:[a-zA-Z]+$")
_OPENAI = re.compile(rb"/(?:chat/completions|completions|responses|embeddings|models)(?:/|$)")
# Paths of providers that are no paths of our own, without a name before them.
_NAMELESS = re.compile(
    rb"/(?:v1/(?:messages|complete|chat/completions|completions|responses|embeddings|models)(?:/.*)?"
    rb"|chat/completions|responses|v1beta/.*)"
)


def is_missing(raw_path: bytes, own: Iterable[str]) -> bool:
    """Whether a path, which is of no known provider, is meant for one; `own` are the first parts of the API's paths."""
    if _NAMELESS.fullmatch(raw_path):
        return True
    name, rest = split_names(raw_path)
    return bool(name) and name not in own and suggested_api(rest) != ""


def suggested_api(path: bytes) -> str:
    """The API whose paths look like this one, or nothing."""
    for api, looks in (("anthropic", _ANTHROPIC), ("gemini", _GEMINI), ("openai", _OPENAI)):
        if looks.search(path):
            return api
    return ""


def refusal_for(raw_path: bytes, known: list[str], configured: Iterable[str]) -> ProxyRefusal:
    """What to say; `known`: the providers that this caller may hear of; `configured`: those without a base URL, too."""
    if _NAMELESS.fullmatch(raw_path):
        shown = raw_path[:80].decode("latin-1")
        sentence = f"the address lacks its provider, for example /{suggested_api(raw_path)}{shown}"
        return ProxyRefusal(404, "unknown_provider", sentence)
    name = split_names(raw_path)[0].partition("@")[0][:60]
    if name in configured:
        return ProxyRefusal(
            404, "unknown_provider", f'{name} has no base_url: write it under [providers."{name}"] in the config'
        )
    names = [each for provider in known for each in names_of(provider)]
    from difflib import get_close_matches  # late: most services never need it

    near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    nearest = f"did you mean /{near[0]}/…? " if near else ""
    others = f"Known are {', '.join(known)}; another needs a base_url under [providers.NAME] in the config"
    return ProxyRefusal(404, "unknown_provider", f"there is no provider {shown_text(name)!r}: {nearest}{others}")
