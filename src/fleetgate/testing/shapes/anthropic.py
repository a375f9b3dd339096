"""The Anthropic Messages API: `POST /v1/messages`."""

from __future__ import annotations

import time

from fleetgate.simulate.provider_rates import ProviderRate, RateState, Shortage
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
_UNITS = {"calls": "requests", "input": "input-tokens", "output": "output-tokens", "tokens": "tokens"}


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
            "usage": self._usage(call, call.usage.output),
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
            "usage": {"output_tokens": call.usage.output},
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

    def rate_error(self, call: ModelCall, shortage: Shortage) -> Json:
        rate = shortage.rate
        words = _UNITS[rate.unit].replace("-", " ")
        sentence = (
            f"This request would exceed your organization's rate limit of {rate.amount:,} {words} per minute "
            f"(org: 00000000-0000-0000-0000-000000000000, model: {call.model}). For details, refer to: "
            "https://docs.claude.com/en/api/rate-limits. You can see the response headers for current usage. "
            "Please reduce the prompt length or the maximum tokens requested, or try again later."
        )
        return self.error(429, sentence, call.id)

    def rate_fields(self, states: list[RateState]) -> list[tuple[str, str]]:
        fields = []
        for state in [*states, *_sum_of_tokens(states)]:
            name = f"anthropic-ratelimit-{_UNITS[state.rate.unit]}"
            fields += [
                (f"{name}-limit", str(state.rate.amount)),
                (f"{name}-remaining", str(state.remaining)),
                (f"{name}-reset", _reset_time(state.full_ms)),
            ]
        return fields

    def _message(self, call: ModelCall) -> Json:
        return {
            "id": f"msg_{call.id}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(call, 0),
        }

    def _usage(self, call: ModelCall, output: int) -> Json:
        return {
            "input_tokens": call.usage.input,
            "cache_creation_input_tokens": call.usage.cache_write,
            "cache_read_input_tokens": call.usage.cache_read,
            "output_tokens": output,
        }


def _sum_of_tokens(states: list[RateState]) -> list[RateState]:
    """Input and output together, which Anthropic reports beside the two."""
    by_unit = {state.rate.unit: state for state in states}
    if not {"input", "output"} <= by_unit.keys() or "tokens" in by_unit:
        return []
    inp, out = by_unit["input"], by_unit["output"]
    rate = ProviderRate("tokens", inp.rate.amount + out.rate.amount)
    return [RateState(rate, inp.remaining + out.remaining, max(inp.full_ms, out.full_ms))]


def _reset_time(wait_ms: int) -> str:
    """RFC 3339 in whole seconds, rounded up."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(-(-(time.time_ns() // 1_000_000 + wait_ms) // 1000)))
