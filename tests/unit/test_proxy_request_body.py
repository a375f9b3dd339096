"""What is read of a request, and what is replaced in it (rules X1, X3)."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from time import process_time

import pytest

from fleetgate.proxy.body_pieces import body_pieces
from fleetgate.proxy.errors import ProxyRefusal
from fleetgate.proxy.request_body import (
    ATTACHMENT_BYTES,
    MOST_OUTPUT,
    BodyMemory,
    RequestBody,
    model_in_path,
    path_with_model,
    read_call,
    read_fields,
    readable_path,
    with_model,
)

JSON = b"application/json"
FORM = b"multipart/form-data; boundary=xx"


class Source:
    """A client that sends its body in these parts."""

    def __init__(self, parts: tuple[bytes, ...]) -> None:
        self._parts = list(parts)

    @property
    def body_complete(self) -> bool:
        return not self._parts

    def take_body(self) -> bytes:
        return self._parts.pop(0)

    async def read_body(self) -> tuple[bytes, bool]:
        return self.take_body(), not self.body_complete


def _body(*parts: bytes, store: BodyMemory | None = None) -> RequestBody:
    return RequestBody(Source(parts), store or BodyMemory())


@pytest.mark.parametrize(
    "said",
    [
        b'{"model": "old"}',
        b'{ "stream" : true,\n\t"model"\n:\t"old" , "n":1.0e3, "x": [1,  2] }\r\n',
        b'{"tools":[{"model":"old"}],"model":"old","messages":[{"content":"say \\"model\\": \\"old\\""}]}',
        b'{"x":{"model":"old","y":{"model":"old"}},"model":"old","z":{"model":"old"}}',
        b'{"messages":["\\u00e9 \\ud83d\\ude00","\xc3\xa9"],"model":"old"}',
    ],
)
def test_x3_of_a_body_only_the_model_is_replaced(said: bytes) -> None:
    got = with_model(said, 'a "new"/one', JSON)
    said_new = b'"a \\"new\\"/one"'
    places = [at for at in range(len(said)) if said.startswith(b'"old"', at)]
    assert got in [said[:at] + said_new + said[at + 5 :] for at in places]
    body = asyncio.run(_read(_body(got)))
    assert read_call(body, JSON).model == 'a "new"/one'


async def _read(body: RequestBody) -> RequestBody:
    while not body.collect():
        pass
    return body


def test_x3_the_same_model_elsewhere_leaves_a_body_as_it_is() -> None:
    said = b'{"x": {"model": "m"},  "model" : "m" }'
    assert with_model(said, "m", JSON) == said


def test_x3_of_a_model_that_is_said_twice_the_one_that_counts_is_replaced() -> None:
    assert with_model(b'{"model":"a","model":"b"}', "c", JSON) == b'{"model":"a","model":"c"}'


def test_x3_a_name_with_escapes_is_found_too() -> None:
    assert with_model(b'{"mod\\u0065l":"old","x":1}', "new", JSON) == b'{"model":"new","x":1}'


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b'{"x":[%s],"mod\\u0065l":"old"}' % b",".join([b'{"model":"a"}'] * 30_000), id="many models"),
        pytest.param(b'{"model":"%s"}' % (b"a" * 5_000_000), id="a long name"),
    ],
)
def test_x3_a_body_made_to_be_slow_gets_another_model_in_little_time_and_memory(hostile: bytes) -> None:
    tracemalloc.start()
    before = process_time()
    got = with_model(hostile, "new", JSON)
    spent_s, (_, most_bytes) = process_time() - before, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read_fields(got, JSON).model == "new"
    assert spent_s < 1.0
    assert most_bytes < 40_000_000


def test_x3_of_a_form_only_the_model_is_replaced() -> None:
    form = (
        b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\xff"model"\r\n'
        b'--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--xx--\r\n'
    )
    assert with_model(form, "whisper-2", FORM) == form.replace(b"whisper-1", b"whisper-2")
    assert with_model(b"--xx--", "whisper-2", FORM) == b"--xx--"


@pytest.mark.parametrize(
    ("path", "model", "other"),
    [
        (b"/v1beta/models/m:generateContent", "m", b"/v1beta/models/new:generateContent"),
        (b"/v1beta/models/models:generateContent", "models", b"/v1beta/models/new:generateContent"),
        (b"/openai/deployments/gpt-5/chat/completions", "gpt-5", b"/openai/deployments/new/chat/completions"),
        (b"/v1beta/tunedModels/a%20b:x", "a%20b", b"/v1beta/tunedModels/new:x"),
        (b"/v1/chat/completions", "", b"/v1/chat/completions"),
        (b"/v1/models/m", "", b"/v1/models/m"),
    ],
)
def test_x3_of_a_path_only_the_model_is_replaced(path: bytes, model: str, other: bytes) -> None:
    assert model_in_path(path.decode()) == model
    assert path_with_model(path, "new") == other


def test_x3_a_model_cannot_break_out_of_its_place_in_a_path() -> None:
    assert path_with_model(b"/models/m:x", "a/../b c\r\n?") == b"/models/a%2F..%2Fb%20c%0D%0A%3F:x"


@pytest.mark.parametrize("said", [b"", b"[]", b"{", b'{"model":1}', b'{"model":null}', b"\xff\xfe", b"[" * 100_000])
def test_x1_what_names_no_model_names_none(said: bytes) -> None:
    assert read_call(asyncio.run(_read(_body(said))), JSON).model == ""


@pytest.mark.parametrize("kind", [JSON, b"text/plain", b"application/vnd.api+json", b""])
@pytest.mark.parametrize(
    ("said", "model"),
    [
        ('{"model":"m1","x":1}'.encode("utf-16"), "m1"),
        ('{"model":"m1","x":1}'.encode("utf-16-le"), "m1"),
        ('{"model":"m1","x":1}'.encode("utf-16-be"), "m1"),
        ('{"model":"m1","x":1}'.encode("utf-32"), "m1"),
        ('\ufeff{"model":"m1"}'.encode(), "m1"),
        (b'{"model":"m1","x":NaN}', "m1"),
        (b'{"model":"m1","x":"\xff"}', "m1"),
        (b'{"x":NaN,"Model":"m1"}', "m1"),
        (b'{"mod\\u0065l":"m1","x":NaN}', "unknown"),
        (b'{"Model":"m1"}', "m1"),
        (b'{"MODEL":"m1","model":"m1"}', "m1"),
        (b'{"\\u004dodel":"m1"}', "m1"),
        (b'{"modeL":"m\\u0031"}', "unknown"),
        (b'{"modeL":7}', "unknown"),
    ],
)
def test_x1_a_model_that_some_provider_would_read_is_read(said: bytes, model: str, kind: bytes) -> None:
    """Python's `json` reads UTF-16 and NaN; Go reads names in any letter case, and bytes that are no UTF-8."""
    assert read_call(asyncio.run(_read(_body(said))), kind).model == model


def _form(*parts: str) -> bytes:
    return "".join(f"--xx\r\n{part}\r\n" for part in parts).encode() + b"--xx--\r\n"


@pytest.mark.parametrize("kind", [FORM, FORM.title(), b"MULTIPART/FORM-DATA; boundary=xx"])
@pytest.mark.parametrize(
    "said",
    [
        _form('Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1'),
        _form("Content-Disposition: form-data; name=model\r\n\r\nwhisper-1"),
        _form('content-disposition: form-data; NAME = "model" ; x=y\r\nContent-Type: text/plain\r\n\r\nwhisper-1'),
        _form('Content-Disposition: form-data; name="model"; filename=""\r\n\r\nwhisper-1'),
        _form("Content-Disposition: form-data; name*=UTF-8''model\r\n\r\nwhisper-1"),
        _form('Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1').replace(b"\r\n", b"\n"),
        _form(
            'Content-Disposition: form-data; name="file"; filename="model"\r\n\r\ncheap',
            'Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1',
        ),
    ],
)
def test_x1_the_model_of_a_form_is_read_however_it_is_written(said: bytes, kind: bytes) -> None:
    assert read_call(asyncio.run(_read(_body(said))), kind).model == "whisper-1"


@pytest.mark.parametrize("models", [("cheap", "dear"), ("same", "same"), ("\r\n",) * 1_000_000])
def test_x1_a_form_that_names_several_models_is_refused_soon(models: tuple[str, ...]) -> None:
    said = _form(*(f'Content-Disposition: form-data; name="model"\r\n\r\n{model}' for model in models))
    before = process_time()
    with pytest.raises(ProxyRefusal, match="several models"):
        read_call(asyncio.run(_read(_body(said))), FORM)
    assert process_time() - before < 1.0


def test_x1_a_large_form_whose_model_may_come_later_takes_a_slot() -> None:
    start = b'--xx\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    body = _body(start, b"x" * 100, b"x", store=BodyMemory(each=32))
    assert read_call(asyncio.run(_read(body)), FORM).model == "unknown"


@pytest.mark.parametrize(
    ("path", "model", "plain"),
    [
        ("/v1beta/%6dodels/g:generateContent", "g", "/v1beta/models/g:generateContent"),
        ("/v1beta/models/g%3AgenerateContent", "g", "/v1beta/models/g:generateContent"),
        ("/v1beta/models/g%3agenerateContent", "g", "/v1beta/models/g:generateContent"),
        ("/v1beta//models//g:generateContent", "g", "/v1beta//models//g:generateContent"),
        ("/openai/Deployments/d/chat/completions", "d", "/openai/Deployments/d/chat/completions"),
        ("/%6Dodel/a.b-v1%3A0/invoke", "a.b-v1:0", "/model/a.b-v1:0/invoke"),
        ("/model/a.b-v1%3A0/%69nvoke", "a.b-v1:0", "/model/a.b-v1:0/invoke"),
        ("/v1beta/models/caf%C3%A9:generateContent", "caf%C3%A9", "/v1beta/models/caf%C3%A9:generateContent"),
        ("/v1/%6dessages", "", "/v1/%6dessages"),
    ],
)
def test_x1_the_model_in_a_path_is_read_however_it_is_written(path: str, model: str, plain: str) -> None:
    assert readable_path(path.encode()) == plain.encode()
    assert model_in_path(plain) == model


@pytest.mark.parametrize("said", [b'{"model":"cheap","Model":"dear"}', b'{"Model":"dear","MODEL":"cheap"}'])
def test_x1_a_body_that_names_two_models_for_providers_of_two_kinds_is_refused(said: bytes) -> None:
    with pytest.raises(ProxyRefusal, match="several models"):
        read_call(asyncio.run(_read(_body(said))), JSON)


def test_x3_a_body_in_utf_16_gets_another_model_too() -> None:
    changed = with_model('{"model":"old","x":"é"}'.encode("utf-16"), "new", JSON)
    assert json.loads(changed) == {"model": "new", "x": "é"}


def test_of_a_large_body_the_beginning_tells_the_model() -> None:
    async def large(start: bytes) -> str:
        body = _body(start, b"x" * 100, b"}", store=BodyMemory(each=64))
        await _read(body)
        assert (body.whole, body.kept) == (False, False)
        found = read_call(body, JSON).model
        rest = b"".join([piece async for piece in body_pieces(body, body.data)])
        assert rest == start + b"x" * 100 + b"}"
        assert body.whole
        return found

    assert asyncio.run(large(b'{"model" : "m1", ')) == "m1"
    assert asyncio.run(large(b'{"stream": true, ')) == "unknown", "it takes a slot all the same"


@pytest.mark.parametrize(
    ("said", "most"),
    [
        (b'{"model":"m","max_tokens":4096}', 4096),
        (b'{"max_completion_tokens": 100, "max_tokens":null}', 100),
        (b'{"input":"hi","max_output_tokens":77}', 77),
        (b'{"generationConfig":{"temperature":1,"maxOutputTokens":8192,"candidateCount":2}}', 16_384),
        (b'{"max_tokens":10,"n":3}', 30),
        (b'{"max_tokens":10,"n":99999999999}', 1280),
        (b'{"messages":[{"max_tokens":9}],"x":{"max_tokens":8}}', 0),
        (b'{"max_tokens":"4096"}', 0),
        (b'{"max_tokens":-1}', 0),
        (b'{"max_tokens":1e9}', 0),
        (b'{"max_tokens":{"a":[1]},"generationConfig":7,"n":[]}', 0),
        (b'{"generationConfig":{"maxOutputTokens":{"x":1},"candidateCount":true}}', 0),
        (b'{"max_tokens":999999999}', MOST_OUTPUT),
        (b'{"max_tokens":' + b"9" * 5000 + b"}", MOST_OUTPUT),
        (b'{"max_tokens":16, nonsense', 16),
        (b'{"content":"say \\"max_tokens\\": 5", nonsense', 0),
    ],
)
def test_V2_the_most_that_an_answer_may_have_is_read_and_an_absurd_number_is_harmless(said: bytes, most: int) -> None:
    assert read_call(asyncio.run(_read(_body(said))), JSON).max_tokens == most


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_V2_the_size_of_a_call_is_that_of_its_text(encoding: str) -> None:
    def size(said: bytes, kind: bytes = JSON) -> int:
        data = gzip.compress(said) if encoding else said
        return read_call(asyncio.run(_read(_body(data))), kind, encoding.encode()).body_bytes

    prompt = json.dumps({"model": "m", "messages": [{"content": "some words, " * 50_000}]}).encode()
    assert size(prompt) == len(prompt)
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 90_000}}
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 90_000}}
    text = {"type": "text", "text": "some words, " * 50_000}
    both = json.dumps({"model": "m", "messages": [{"content": [picture, text, url]}]}).encode()
    assert len(prompt) < size(both) < len(prompt) + 3 * ATTACHMENT_BYTES
    assert size(b"x" * 500_000, FORM) == ATTACHMENT_BYTES


def test_V2_of_a_large_body_the_beginning_tells_the_most_that_an_answer_may_have() -> None:
    async def large() -> int:
        body = _body(b'{"model":"m","max_tokens":12,"x":"', b"x" * 100, b'"}', store=BodyMemory(each=64))
        await _read(body)
        return read_call(body, JSON).max_tokens

    assert asyncio.run(large()) == 12


def test_what_is_kept_of_bodies_is_counted_and_forgotten() -> None:
    async def some() -> None:
        store = BodyMemory()
        whole, gone = _body(b"12", b"345", store=store), _body(b"67", b"8", store=store)
        await _read(whole)
        assert store.kept == 5
        assert not gone.collect()
        assert store.kept == 7
        gone.forget()  # its client has left
        assert store.kept == 5
        whole.forget()
        assert store.kept == 0

    asyncio.run(some())
