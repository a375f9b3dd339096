"""`{model}` and its parts in an agent's arguments (rule R1)."""

from __future__ import annotations

from fleetgate.core.model_names import parse_model
from fleetgate.signals.agents import spelled


def filled_in(argv: list[str], model: str) -> list[str]:
    """The arguments with the placeholders replaced by the chosen model's name and its parts."""
    if not model or not any("{" in word for word in argv):
        return argv
    parts = parse_model(model)
    provider = spelled(argv, parts.provider)
    named = provider + model[len(parts.provider) :]
    values = {"{model}": named, "{provider}": provider, "{account}": parts.account, "{name}": parts.name}
    filled = []
    for word in argv:
        for placeholder, value in values.items():
            word = word.replace(placeholder, value)
        filled.append(word)
    return filled


def filled_text(command: str, model: str) -> str:
    """The same for a command line as it is shown."""
    return " ".join(filled_in(command.split(" "), model)) if "{" in command else command
