"""The real SDKs see through the proxy what they see without it: the same objects, the same chunks, the same errors."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types

from fleetgate.core.usage import Usage
from fleetgate.testing.script import Fault
from tests.proxy.proxied import Proxied

# Their imports warn of what is deprecated among themselves.
pytestmark = pytest.mark.filterwarnings("default")

MESSAGE = [{"role": "user", "content": "hi"}]
TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
IMAGE = base64.b64encode(os.urandom(10 << 20)).decode()


def _told(value: Any) -> Any:
    """An SDK's object as data, without what is different each time."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        gone = ("id", "request_id", "response_id", "sdk_http_response", "item_id", "create_time")
        return {name: _told(each) for name, each in value.items() if name not in gone}
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    return value


def _error(error: Exception) -> Any:
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    body = getattr(error, "body", None) or getattr(error, "details", None)
    return type(error).__name__, status, _told(body)


def _same(do: Callable[[str], Any], *urls: str) -> Any:
    """What comes of it both ways, which must be the same."""
    results = []
    for url in urls:
        try:
            results.append(_told(do(url)))
        except (openai.APIError, anthropic.APIError, genai_errors.APIError) as error:
            results.append(_error(error))
    assert results[0] == results[1]
    return results[1]


@pytest.fixture
def ways(shared: Proxied) -> dict[str, tuple[str, str]]:
    direct = shared.upstream
    return {
        "openai": (f"{direct}/v1", f"{shared.url}/openai/v1"),
        "anthropic": (direct, f"{shared.url}/anthropic"),
        "gemini": (direct, f"{shared.url}/gemini"),
    }


def _openai(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="some-key", max_retries=0)


def _anthropic(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="some-key", max_retries=0)


def _gemini(url: str) -> Any:
    return genai.Client(api_key="some-key", http_options=types.HttpOptions(base_url=url))


@pytest.mark.parametrize("stream", [False, True])
def test_openai_chat(ways: dict[str, tuple[str, str]], stream: bool) -> None:
    def chat(url: str) -> Any:
        with _openai(url) as client:
            answer = client.chat.completions.create(model="m1", messages=MESSAGE, stream=stream, tools=[FUNCTION])
            return list(answer) if stream else answer

    assert _same(chat, *ways["openai"])


@pytest.mark.parametrize("stream", [False, True])
def test_openai_responses(ways: dict[str, tuple[str, str]], stream: bool) -> None:
    def respond(url: str) -> Any:
        with _openai(url) as client:
            answer = client.responses.create(model="m1", input="hi", stream=stream)
            return list(answer) if stream else answer.output_text

    assert _same(respond, *ways["openai"])


def test_openai_async(ways: dict[str, tuple[str, str]]) -> None:
    async def chat(url: str) -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key="some-key", max_retries=0) as client:
            whole = await client.chat.completions.create(model="m1", messages=MESSAGE)
            stream = await client.chat.completions.create(model="m1", messages=MESSAGE, stream=True)
            return [_told(whole), [_told(chunk) async for chunk in stream]]

    assert _same(lambda url: asyncio.run(chat(url)), *ways["openai"])


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_messages(ways: dict[str, tuple[str, str]], stream: bool) -> None:
    def chat(url: str) -> Any:
        with _anthropic(url) as client:
            answer = client.messages.create(
                model="claude-x", max_tokens=9, messages=MESSAGE, stream=stream, tools=[TOOL]
            )
            return list(answer) if stream else answer

    assert _same(chat, *ways["anthropic"])


def test_anthropic_async(ways: dict[str, tuple[str, str]]) -> None:
    async def chat(url: str) -> Any:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="some-key", max_retries=0) as client:
            whole = await client.messages.create(model="claude-x", max_tokens=9, messages=MESSAGE)
            async with client.messages.stream(model="claude-x", max_tokens=9, messages=MESSAGE) as stream:
                return [_told(whole), [text async for text in stream.text_stream]]

    assert _same(lambda url: asyncio.run(chat(url)), *ways["anthropic"])


@pytest.mark.parametrize("stream", [False, True])
def test_gemini(ways: dict[str, tuple[str, str]], stream: bool) -> None:
    def chat(url: str) -> Any:
        client = _gemini(url)
        if stream:
            return list(client.models.generate_content_stream(model="gemini-2", contents="hi"))
        return client.models.generate_content(model="gemini-2", contents="hi")

    assert _same(chat, *ways["gemini"])


def test_gemini_async(ways: dict[str, tuple[str, str]]) -> None:
    async def chat(url: str) -> Any:
        client = _gemini(url)
        whole = await client.aio.models.generate_content(model="gemini-2", contents="hi")
        stream = await client.aio.models.generate_content_stream(model="gemini-2", contents="hi")
        told = [_told(whole), [_told(chunk) async for chunk in stream]]
        await client.aio.aclose()
        return told

    assert _same(lambda url: asyncio.run(chat(url)), *ways["gemini"])


def test_an_image_of_10_mb(ways: dict[str, tuple[str, str]], shared: Proxied) -> None:
    def chat(url: str) -> Any:
        source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
        content = [{"type": "image", "source": source}, {"type": "text", "text": "what is it?"}]
        with _anthropic(url) as client:
            return client.messages.create(
                model="claude-x", max_tokens=9, messages=[{"role": "user", "content": content}]
            )

    assert _same(chat, *ways["anthropic"])
    direct, through = list(shared.provider.seen)[-2:]
    assert direct.body == through.body


def _chat(url: str, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    with _openai(url) as client:
        answer = client.chat.completions.create(model="m1", messages=MESSAGE, stream=stream, **options)
        list(answer)


def _respond(url: str, stream: bool) -> None:
    with _openai(url) as client:
        list(client.responses.create(model="m1", input="hi", stream=stream))


def _message(url: str, stream: bool) -> None:
    with _anthropic(url) as client:
        list(client.messages.create(model="claude-x", max_tokens=5000, messages=MESSAGE, stream=stream))


def _generate(url: str, stream: bool) -> None:
    client = _gemini(url)  # held: it closes its connections when it is collected
    if stream:
        list(client.models.generate_content_stream(model="gemini-2", contents="hi"))
    else:
        client.models.generate_content(model="gemini-2", contents="hi")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("sdk", "ask"), [("openai", _chat), ("openai", _respond), ("anthropic", _message), ("gemini", _generate)]
)
def test_U1_what_an_sdk_uses_is_counted(
    ways: dict[str, tuple[str, str]], shared: Proxied, sdk: str, ask: Callable[[str, bool], None], stream: bool
) -> None:
    shared.check_nothing_is_held()
    before, served = len(shared.events("released")), shared.provider.served.total
    shared.provider.usages.append(Usage(1, 1234, 567, 0, 890))
    ask(ways[sdk][1], stream)
    (event,) = shared.wait_until(lambda: shared.events("released")[before:], "it ended")
    usage = event["usage"]
    assert (usage["input"], usage["cache_read"], usage["output"], usage["source"]) == (1234, 567, 890, "response")
    assert shared.provider.served.total.tokens - served.tokens == usage["tokens"]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500])
@pytest.mark.parametrize("sdk", ["openai", "anthropic", "gemini"])
def test_errors_are_the_same(ways: dict[str, tuple[str, str]], shared: Proxied, sdk: str, status: int) -> None:
    key = f"key-{sdk}-{status}"

    def chat(url: str) -> Any:
        if sdk == "openai":
            return openai.OpenAI(base_url=url, api_key=key, max_retries=0).chat.completions.create(
                model="m1", messages=MESSAGE
            )
        if sdk == "anthropic":
            return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0).messages.create(
                model="claude-x", max_tokens=9, messages=MESSAGE
            )
        client = genai.Client(api_key=key, http_options=types.HttpOptions(base_url=url))
        return client.models.generate_content(model="gemini-2", contents="hi")

    shared.provider.script(Fault(status=status, times=2))
    _, seen, _ = _same(chat, *ways[sdk])
    assert seen == status
    assert shared.provider.stats.faults_left == 0
