"""The click type of models, accounts, selectors and pools: it replaces other names of a provider."""

from __future__ import annotations

import click

from fleetgate.core.model_names import canonical


class Name(click.types.StringParamType):
    """Text that begins with the name of a provider."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return canonical(value)


NAME = Name()
