"""The Gemini API: `POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent`.

A stream is server-sent events with `?alt=sse`, else one JSON array whose elements arrive one by one.
"""

from __future__ import annotations

import re

from fleetgate.testing.server import SeenRequest
from fleetgate.testing.shapes.base import EVENT_STREAM, JSON, Json, ModelCall, Shape, dump, event, read_object, seconds

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
_INPUT_TOKENS = 12


class GeminiShape(Shape):
    name = "gemini"

    def owns(self, path: str) -> bool:
        return _ROUTE.fullmatch(path) is not None

    def read(self, request: SeenRequest, id: str, texts: tuple[str, ...]) -> ModelCall:
        read_object(request)
        route = _ROUTE.fullmatch(request.path)
        assert route is not None
        stream = route["verb"] == "streamGenerateContent"
        return ModelCall(route["model"], id, stream, texts, as_array=request.query.get("alt") != "sse")

    def whole(self, call: ModelCall) -> Json:
        return self._answer(call, call.text, "STOP", len(call.texts))

    def opening(self, call: ModelCall) -> bytes:
        return b"[" if call.as_array else b""

    def piece(self, call: ModelCall, index: int) -> bytes:
        last = index == len(call.texts) - 1
        answer = self._answer(call, call.texts[index], "STOP" if last else None, index + 1)
        return self._element(answer, index) if call.as_array else event(answer)

    def closing(self, call: ModelCall) -> bytes:
        if call.texts:
            return b"]" if call.as_array else b""
        answer = self._answer(call, "", "STOP", 0)
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
        usage = {
            "promptTokenCount": _INPUT_TOKENS,
            "candidatesTokenCount": tokens,
            "totalTokenCount": _INPUT_TOKENS + tokens,
        }
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": call.model, "responseId": call.id}
