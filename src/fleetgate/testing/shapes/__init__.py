"""The wire shapes of the model APIs that the fake provider speaks, one module each.

The rule: a shape only reads and writes; whether a call is accepted is not its business. `find(path)` names the shape
of a request by the end of its path, so a base URL may carry any prefix.
"""

from __future__ import annotations

from fleetgate.testing.shapes.anthropic import Anthropic
from fleetgate.testing.shapes.base import BadCall, Call, Shape
from fleetgate.testing.shapes.gemini import Gemini
from fleetgate.testing.shapes.openai import OpenAIChat, OpenAIResponses

__all__ = ["SHAPES", "BadCall", "Call", "Shape", "find"]

SHAPES: tuple[Shape, ...] = (Anthropic(), OpenAIChat(), OpenAIResponses(), Gemini())


def find(path: str) -> Shape | None:
    return next((shape for shape in SHAPES if shape.owns(path)), None)
