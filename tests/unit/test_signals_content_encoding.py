"""Content encodings: what is compressed is understood, one encoding upon another too, and never more than is wanted."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from fleetgate.signals import content_encoding
from fleetgate.signals.classify_http import classify_response
from fleetgate.signals.content_encoding import Decoder, Undecodable, decoded, narrowed

TEXT = b'{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": _raw_deflate,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "identity": bytes,
    "": bytes,
    "gzip, br": lambda data: brotli.compress(gzip.compress(data)),
    "zstd,  gzip , identity": lambda data: gzip.compress(zstandard.compress(data)),
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_is_compressed_is_decoded_in_pieces_of_any_size(name: str, size: int) -> None:
    packed = PACKED[name](TEXT)
    decoder = Decoder(name)
    pieces = [decoder.feed(packed[at : at + size], 1 << 20) for at in range(0, len(packed), size)]
    assert b"".join(pieces) == TEXT
    assert not decoder.cut


@pytest.mark.parametrize("name", PACKED)
def test_an_error_is_understood_whatever_it_is_compressed_with(name: str) -> None:
    for body in (PACKED[name](TEXT), TEXT):  # it may have been decoded on its way, and its header left
        assert classify_response("openai", 429, {"Content-Encoding": name}, body, 0).kind == "quota"


@pytest.mark.parametrize("name", [name for name in PACKED if "identity" not in name.lower() and name])
def test_a_bomb_is_not_made_larger_than_is_wanted(name: str) -> None:
    packed = PACKED[name](bytes(50_000_000))
    found, whole = decoded(packed, name, 10_000)
    assert (len(found), whole) == (10_000, False)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_several_members_in_a_row_are_one_body(pack: Callable[[bytes], bytes]) -> None:
    name = "gzip" if pack is gzip.compress else "zstd"
    assert decoded(pack(b"one ") + pack(b"two"), name, 100) == (b"one two", True)


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd", "compress", "gzip, " * 9 + "gzip", "dcz"])
def test_what_is_not_what_it_says_is_undecodable(name: str) -> None:
    with pytest.raises(Undecodable):
        decoded(b"\xff\xfe nothing of the kind", name, 100)


def test_a_frame_that_asks_for_much_memory_gets_none() -> None:
    params = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=False)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    packed = packer.compress(b"x" * 100) + packer.flush()
    with pytest.raises(Undecodable):
        decoded(packed, "zstd", 1000)


@pytest.mark.parametrize(
    ("accepted", "sent"),
    [
        ("gzip, deflate", "gzip, deflate"),
        ("gzip;q=1.0, br;q=0.5", "gzip;q=1.0, br;q=0.5"),
        ("gzip, dcb, *;q=0.1", "gzip"),
        ("compress", "identity"),
        ("identity", "identity"),
    ],
)
def test_only_what_can_be_looked_at_is_asked_for(accepted: str, sent: str) -> None:
    assert narrowed(accepted) == sent


def test_without_the_packages_gzip_and_deflate_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {name: step for name, step in content_encoding.steps().items() if name not in ("br", "zstd")}
    monkeypatch.setattr(content_encoding, "steps", lambda: steps)
    assert narrowed("gzip, deflate, br, zstd") == "gzip, deflate"
    assert narrowed("br") == "identity"
    with pytest.raises(Undecodable):
        Decoder("zstd")
