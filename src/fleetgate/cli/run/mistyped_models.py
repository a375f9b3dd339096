"""Mistyped models: those that no cap counts and whose name is almost a known one are mentioned (rule C9).

Only letters are compared: another version of a model is no typo. A name is close if it differs by one letter, or by
two if it is long: a wrong, missing or additional letter, or two that are swapped.
"""

from __future__ import annotations

from fleetgate.cli.run.wait_progress import say
from fleetgate.config.model_families import CLAUDE
from fleetgate.core.model_names import Selector, canonical, parse_model, parse_selector
from fleetgate.gate.providers.known_providers import KNOWN_PROVIDERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fleetgate.config.settings import Settings
    from fleetgate.gate.slots.slot_gate import SlotGate

_SHORTEST = 4  # shorter names have too many neighbours
_LONG = 8


def mention_mistyped(gate: SlotGate, models: tuple[str, ...]) -> None:
    """Print a line about the first such model."""
    if text := mention_typos(models, gate.cap_selectors(), gate.settings):
        say(text)


def mention_typos(models: Iterable[str], selectors: Collection[str], settings: Settings) -> str:
    """A sentence about the first model that looks mistyped; "" if none does. `selectors` are those of all caps."""
    model_caps = [selector for text in selectors if (selector := parse_selector(text)).scope == "model"]
    for model in models:
        if meant := _meant_provider(model, model_caps, settings):
            return f"{model}: its provider is not known; did you mean {meant}?"
        if meant := _meant(model, model_caps, settings):
            hint = "(`fleetgate cap ls` lists the caps; -m none for no model)"
            return f"{model} matches no cap on a model; did you mean {meant}? {hint}"
    return ""


def _meant_provider(text: str, caps: list[Selector], settings: Settings) -> str:
    """The model with the provider that was probably meant; "" if the provider is known, or unlike any that is."""
    model = parse_model(text)
    providers = {*KNOWN_PROVIDERS, *settings.providers, *(parse_model(each).provider for each in settings.models)}
    providers |= {selector.provider for selector in caps if "*" not in selector.provider}
    provider = canonical(model.provider)
    close = "" if provider in providers else next((each for each in sorted(providers) if is_close(provider, each)), "")
    return f"{close}/{model.name}" if close else ""


def _meant(text: str, caps: list[Selector], settings: Settings) -> str:
    """What was probably meant; "" if the model is counted, known, or unlike anything known."""
    model = parse_model(text)
    named = [parse_model(each) for each in settings.models]
    known = any((each.provider, each.name) == (model.provider, model.name) for each in named)
    if known or any(selector.matches(model) for selector in caps):
        return ""
    provider = canonical(model.provider)
    rest = model.name
    for selector in caps:
        start = selector.name.partition("*")[0]
        if selector.name and _may_be(selector.provider, provider) and starts_close(rest, start):
            return selector.text
    same = [each for each in named if each.provider == model.provider]
    exact = next((each for each in same if is_close("".join(_words(rest)), "".join(_words(each.name)))), None)
    if exact is not None:
        return str(exact)
    family = next((each for each in CLAUDE if starts_close(rest, f"claude-{each}")), "")
    return f"{model.provider}/claude-{family}-…" if family else ""


def _may_be(pattern: str, provider: str) -> bool:
    return "*" in pattern or pattern == provider


def starts_close(name: str, start: str) -> bool:
    """Whether the first words of a name are almost, but not exactly, these."""
    known = _words(start)
    return is_close("".join(_words(name)[: len(known)]), "".join(known))


def is_close(name: str, known: str) -> bool:
    """Whether two names differ by a typo or two, and differ at all."""
    if len(known) < _SHORTEST or name == known:
        return False
    return _distance(name, known) <= (2 if len(known) >= _LONG else 1)


def _words(text: str) -> list[str]:
    """The words of a name without digits; what has no letters is left out."""
    letters = "".join(char if char.isalpha() else "" if char.isdigit() else " " for char in text.lower())
    return letters.split()


def _distance(one: str, other: str) -> int:
    """How many letters are wrong, missing, additional, or swapped with their neighbour."""
    if abs(len(one) - len(other)) > 2:
        return 3
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, left in enumerate(one, 1):
        now = [row]
        for column, right in enumerate(other, 1):
            best = min(last[column] + 1, now[column - 1] + 1, last[column - 1] + (left != right))
            swapped = row > 1 and column > 1 and left == other[column - 2] and right == one[row - 2]
            now.append(min(best, before[column - 2] + 1) if swapped else best)
        before, last = last, now
    return last[-1]
