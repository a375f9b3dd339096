"""`{model}` and its parts in an agent's arguments (SPEC R1)."""

from __future__ import annotations

from headgate.core.names import parse_model


def filled_in(argv: list[str], model: str) -> list[str]:
    """The arguments with the placeholders replaced by the chosen model's name and its parts."""
    if not model or not any("{" in word for word in argv):
        return argv
    parts = parse_model(model)
    values = {"{model}": model, "{provider}": parts.provider, "{account}": parts.account, "{name}": parts.name}
    filled = []
    for word in argv:
        for placeholder, value in values.items():
            word = word.replace(placeholder, value)
        filled.append(word)
    return filled
