"""The Anthropic Messages API: `POST /v1/messages`."""

from __future__ import annotations

from fleetgate.testing.shapes.base import Json, ModelCall, Shape, event

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_INPUT_TOKENS = 12


class AnthropicShape(Shape):
    name = "anthropic"
    id_field = "request-id"

    def owns(self, path: str) -> bool:
        return path.endswith("/messages")

    def whole(self, call: ModelCall) -> Json:
        return {
            **self._message(call),
            "content": [{"type": "text", "text": call.text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": _INPUT_TOKENS, "output_tokens": len(call.texts)},
        }

    def opening(self, call: ModelCall) -> bytes:
        block = {"type": "text", "text": ""}
        return event({"type": "message_start", "message": self._message(call)}, "message_start") + event(
            {"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start"
        )

    def piece(self, call: ModelCall, index: int) -> bytes:
        delta = {"type": "text_delta", "text": call.texts[index]}
        return event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")

    def closing(self, call: ModelCall) -> bytes:
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": len(call.texts)},
        }
        return (
            event({"type": "content_block_stop", "index": 0}, "content_block_stop")
            + event(delta, "message_delta")
            + event({"type": "message_stop"}, "message_stop")
        )

    def error(self, status: int, sentence: str, id: str, retry_after_s: float | None = None) -> Json:
        kind = _ERROR_TYPES.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": sentence}, "request_id": f"req_{id}"}

    def error_event(self, call: ModelCall, pieces: int, status: int, sentence: str) -> bytes:
        return event(self.error(status, sentence, call.id), "error")

    def refusal(self, model: str) -> str:
        return "Number of concurrent connections to the API exceeds your rate limit. Please try again later."

    def _message(self, call: ModelCall) -> Json:
        return {
            "id": f"msg_{call.id}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": _INPUT_TOKENS, "output_tokens": 0},
        }
