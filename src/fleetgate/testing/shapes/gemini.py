"""The Gemini API: `POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent`.

A stream is server-sent events with `?alt=sse`, else one JSON array whose elements arrive one by one.
"""

from __future__ import annotations

import math
import re

from fleetgate.simulate.provider_rates import Shortage
from fleetgate.testing.server import SeenRequest
from fleetgate.testing.shapes.base import (
    EVENT_STREAM,
    JSON,
    Json,
    ModelCall,
    Shape,
    dump,
    event,
    read_count,
    read_object,
    seconds,
)

_ROUTE = re.compile(r".*/models/(?P<model>[^/:]+):(?P<verb>generateContent|streamGenerateContent)")
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_QUOTAS = {
    "calls": "GenerateRequestsPerMinutePerProjectPerModel",
    "input": "GenerateContentInputTokensPerModelPerMinute",
    "output": "GenerateContentOutputTokensPerModelPerMinute",
    "tokens": "GenerateContentTokensPerModelPerMinute",
}


class GeminiShape(Shape):
    name = "gemini"

    def owns(self, path: str) -> bool:
        return _ROUTE.fullmatch(path) is not None

    def read(self, request: SeenRequest, id: str, texts: tuple[str, ...]) -> ModelCall:
        config = read_object(request).get("generationConfig")
        max_tokens = read_count(config.get("maxOutputTokens")) if isinstance(config, dict) else 0
        route = _ROUTE.fullmatch(request.path)
        assert route is not None
        stream = route["verb"] == "streamGenerateContent"
        as_array = request.query.get("alt") != "sse"
        return ModelCall(route["model"], id, stream, texts, as_array=as_array, max_tokens=max_tokens)

    def whole(self, call: ModelCall) -> Json:
        return self._answer(call, call.text, "STOP", call.usage.output)

    def opening(self, call: ModelCall) -> bytes:
        return b"[" if call.as_array else b""

    def piece(self, call: ModelCall, index: int) -> bytes:
        last = index == len(call.texts) - 1
        output = call.usage.output * (index + 1) // len(call.texts)
        answer = self._answer(call, call.texts[index], "STOP" if last else None, output)
        return self._element(answer, index) if call.as_array else event(answer)

    def closing(self, call: ModelCall) -> bytes:
        if call.texts:
            return b"]" if call.as_array else b""
        answer = self._answer(call, "", "STOP", call.usage.output)
        return dump(answer) + b"]" if call.as_array else event(answer)

    def error(self, status: int, sentence: str, id: str, retry_after_s: float | None = None) -> Json:
        error: Json = {"code": status, "message": sentence, "status": _STATUSES.get(status, "UNKNOWN")}
        if retry_after_s is not None:
            retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds(retry_after_s)}s"}
            error["details"] = [retry]
        return {"error": error}

    def error_event(self, call: ModelCall, pieces: int, status: int, sentence: str) -> bytes:
        error = self.error(status, sentence, call.id)
        return self._element(error, pieces) + b"]" if call.as_array else event(error)

    def refusal(self, model: str) -> str:
        return f"Resource has been exhausted: too many requests to {model} at once."

    def rate_error(self, call: ModelCall, shortage: Shortage) -> Json:
        quota, limit = _QUOTAS[shortage.rate.unit], shortage.rate.amount
        wait_s = math.ceil(shortage.wait_ms / 1000)
        sentence = (
            "You exceeded your current quota, please check your plan and billing details. "
            f"* Quota exceeded for metric: generativelanguage.googleapis.com/{quota}, limit: {limit}, "
            f"model: {call.model}\nPlease retry in {wait_s}s."
        )
        body = self.error(429, sentence, call.id, wait_s)
        violation = {"quotaId": quota, "quotaDimensions": {"model": call.model}, "quotaValue": str(limit)}
        failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}
        body["error"]["details"].insert(0, failure)
        return body

    def stream_type(self, call: ModelCall) -> str:
        return JSON if call.as_array else EVENT_STREAM

    def retry_fields(self, retry_after_s: float | None) -> list[tuple[str, str]]:
        return []  # Gemini tells the wait in the body alone

    def _element(self, answer: Json, index: int) -> bytes:
        return (b",\r\n" if index else b"") + dump(answer)

    def _answer(self, call: ModelCall, text: str, finish: str | None, tokens: int) -> Json:
        candidate: Json = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        prompt = call.usage.tokens - call.usage.output  # with what was read from a cache
        usage = {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": call.usage.cache_read,
            "candidatesTokenCount": tokens,
            "totalTokenCount": prompt + tokens,
        }
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": call.model, "responseId": call.id}
