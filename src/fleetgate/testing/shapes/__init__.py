"""The wire shapes of the model APIs that the fake provider speaks, one module each.

The rule: a shape only reads and writes; whether a call is accepted is not its business. `find(path)` names the shape
of a request by the end of its path, so a base URL may carry any prefix.
"""

from __future__ import annotations

from fleetgate.testing.shapes.anthropic import AnthropicShape
from fleetgate.testing.shapes.base import BadCall, ModelCall, Shape
from fleetgate.testing.shapes.gemini import GeminiShape
from fleetgate.testing.shapes.openai import OpenAIChat, OpenAIResponses

__all__ = ["SHAPES", "BadCall", "ModelCall", "Shape", "find"]

SHAPES: tuple[Shape, ...] = (AnthropicShape(), OpenAIChat(), OpenAIResponses(), GeminiShape())


def find(path: str) -> Shape | None:
    return next((shape for shape in SHAPES if shape.owns(path)), None)
