"""The OpenAI APIs: `POST /v1/chat/completions` and `POST /v1/responses`; they share their errors."""

from __future__ import annotations

from fleetgate.simulate.provider_rates import RateState, Shortage
from fleetgate.testing.shapes.base import Json, ModelCall, Shape, event

_CREATED = 1_700_000_000

# status: (type, code)
_ERRORS: dict[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "permission_denied"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
    500: ("server_error", None),
    503: ("server_error", "server_is_overloaded"),
}

# unit: (the type of the error, its words, its short form)
_RATES = {
    "calls": ("requests", "requests per min", "RPM"),
    "tokens": ("tokens", "tokens per min", "TPM"),
    "input": ("tokens", "input tokens per min", "ITPM"),
    "output": ("tokens", "output tokens per min", "OTPM"),
}


class _OpenAI(Shape):
    def error(self, status: int, sentence: str, id: str, retry_after_s: float | None = None) -> Json:
        kind, code = _ERRORS.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
        return {"error": {"message": sentence, "type": kind, "param": None, "code": code}}

    def refusal(self, model: str) -> str:
        return f"Rate limit reached for {model}: too many requests at once. Please slow down."

    def rate_error(self, call: ModelCall, shortage: Shortage) -> Json:
        rate = shortage.rate
        kind, words, short = _RATES[rate.unit]
        sentence = (
            f"Rate limit reached for {call.model} in organization org-fake on {words} ({short}): "
            f"Limit {rate.amount}, Used {max(rate.amount - shortage.free, 0)}, Requested {shortage.requested}. "
            f"Please try again in {_duration(shortage.wait_ms)}. "
            "Visit https://platform.openai.com/account/rate-limits to learn more."
        )
        return {"error": {"message": sentence, "type": kind, "param": None, "code": "rate_limit_exceeded"}}

    def rate_fields(self, states: list[RateState]) -> list[tuple[str, str]]:
        fields = []
        for state in states:
            if state.rate.unit in ("calls", "tokens"):  # OpenAI has no headers for others
                kind = _RATES[state.rate.unit][0]
                fields += [
                    (f"x-ratelimit-limit-{kind}", str(state.rate.amount)),
                    (f"x-ratelimit-remaining-{kind}", str(state.remaining)),
                    (f"x-ratelimit-reset-{kind}", _duration(state.full_ms)),
                ]
        return fields

    def rate_retry_fields(self, wait_ms: int) -> list[tuple[str, str]]:
        return [*super().rate_retry_fields(wait_ms), ("retry-after-ms", str(wait_ms))]


class OpenAIChat(_OpenAI):
    name = "openai-chat"

    def owns(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def whole(self, call: ModelCall) -> Json:
        message = {"role": "assistant", "content": call.text, "refusal": None}
        return {
            "id": f"chatcmpl-{call.id}",
            "object": "chat.completion",
            "created": _CREATED,
            "model": call.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": self._usage(call),
        }

    def opening(self, call: ModelCall) -> bytes:
        return self._chunk(call, {"role": "assistant", "content": ""})

    def piece(self, call: ModelCall, index: int) -> bytes:
        return self._chunk(call, {"content": call.texts[index]})

    def closing(self, call: ModelCall) -> bytes:
        tail = event({**self._head(call), "choices": [], "usage": self._usage(call)}) if call.with_usage else b""
        return self._chunk(call, {}, "stop") + tail + b"data: [DONE]\n\n"

    def error_event(self, call: ModelCall, pieces: int, status: int, sentence: str) -> bytes:
        return event(self.error(status, sentence, call.id))

    def _chunk(self, call: ModelCall, delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**self._head(call), "choices": [choice]})

    def _head(self, call: ModelCall) -> Json:
        kind = "chat.completion.chunk"
        return {"id": f"chatcmpl-{call.id}", "object": kind, "created": _CREATED, "model": call.model}

    def _usage(self, call: ModelCall) -> Json:
        usage = call.usage
        return {
            "prompt_tokens": usage.tokens - usage.output,  # the prompt includes what was read from a cache
            "completion_tokens": usage.output,
            "total_tokens": usage.tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        }


class OpenAIResponses(_OpenAI):
    name = "openai-responses"

    def owns(self, path: str) -> bool:
        return path.endswith("/responses")

    def whole(self, call: ModelCall) -> Json:
        used = call.usage
        usage = {
            "input_tokens": used.tokens - used.output,  # with what was read from a cache
            "input_tokens_details": {"cached_tokens": used.cache_read},
            "output_tokens": used.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.tokens,
        }
        return {**self._response(call, "completed"), "output": [self._item(call, "completed")], "usage": usage}

    def opening(self, call: ModelCall) -> bytes:
        part = {"type": "output_text", "text": "", "annotations": []}
        created = {"response": self._response(call, "in_progress")}
        added = {"output_index": 0, "item": {**self._item(call, "in_progress"), "content": []}}
        opened = {"item_id": f"msg_{call.id}", "output_index": 0, "content_index": 0, "part": part}
        return (
            self._event("response.created", 0, created)
            + self._event("response.in_progress", 1, created)
            + self._event("response.output_item.added", 2, added)
            + self._event("response.content_part.added", 3, opened)
        )

    def piece(self, call: ModelCall, index: int) -> bytes:
        data = {**self._place(call), "delta": call.texts[index]}
        return self._event("response.output_text.delta", 4 + index, data)

    def closing(self, call: ModelCall) -> bytes:
        number = 4 + len(call.texts)
        part = {"type": "output_text", "text": call.text, "annotations": []}
        done = {"output_index": 0, "item": self._item(call, "completed")}
        return (
            self._event("response.output_text.done", number, {**self._place(call), "text": call.text})
            + self._event("response.content_part.done", number + 1, {**self._place(call), "part": part})
            + self._event("response.output_item.done", number + 2, done)
            + self._event("response.completed", number + 3, {"response": self.whole(call)})
        )

    def error_event(self, call: ModelCall, pieces: int, status: int, sentence: str) -> bytes:
        error = self.error(status, sentence, call.id)["error"]
        response = {
            "id": f"resp_{call.id}",
            "object": "response",
            "status": "failed",
            "error": {"code": error["code"] or error["type"], "message": sentence},
            "output": [],
        }
        return self._event("response.failed", 4 + pieces, {"response": response})

    def _event(self, kind: str, number: int, data: Json) -> bytes:
        return event({"type": kind, "sequence_number": number, **data}, kind)

    def _place(self, call: ModelCall) -> Json:
        return {"item_id": f"msg_{call.id}", "output_index": 0, "content_index": 0}

    def _item(self, call: ModelCall, status: str) -> Json:
        content = [{"type": "output_text", "text": call.text, "annotations": []}]
        return {"id": f"msg_{call.id}", "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, call: ModelCall, status: str) -> Json:
        return {
            "id": f"resp_{call.id}",
            "object": "response",
            "created_at": _CREATED,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "model": call.model,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }


def _duration(ms: int) -> str:
    """As OpenAI writes it: 6m0s, 7.66s, 12ms."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
