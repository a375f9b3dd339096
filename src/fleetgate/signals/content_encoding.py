"""Content encodings: a bounded, decoded copy of compressed data, for classification. The data that is passed on stays
unchanged.

gzip and deflate are always understood, br and zstd where their packages are installed. No copy becomes larger than
its reader wants: decoding stops there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Protocol

_PIECE = 64  # bytes of zstd at once: a block of four bytes may be 128 KB
_MOST_STEPS = 4  # encodings one upon the other
_MOST_WINDOW = 64 << 20  # memory that a frame of zstd may ask for


class Undecodable(Exception):
    """It is not what its encoding says, or that encoding is not known here."""


class _Step(Protocol):
    def feed(self, data: bytes, most: int) -> bytes: ...


class _Deflate:
    """gzip, or deflate with or without the header that it should have."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._object = zlib.decompressobj(bits)
        self._start = b""  # two bytes that tell whether there is a header

    def feed(self, data: bytes, most: int) -> bytes:
        parts, size = [], 0
        while data and size < most:
            part = self._decompress(data, most - size)
            parts.append(part)
            size += len(part)
            if self._object.eof:  # another member may follow
                data, self._object = self._object.unused_data, zlib.decompressobj(self._bits)
            else:
                data = self._object.unconsumed_tail
        return b"".join(parts)

    def _decompress(self, data: bytes, most: int) -> bytes:
        before, self._start = self._start, (self._start + data[:2])[:2]
        try:
            return self._object.decompress(data, most)
        except zlib.error:
            if len(before) == 2 or self._bits != zlib.MAX_WBITS:
                raise
            self._bits, self._object = -zlib.MAX_WBITS, zlib.decompressobj(-zlib.MAX_WBITS)
            return self._object.decompress(before + data, most)


class _Brotli:
    def __init__(self, module: Any) -> None:
        self._object = module.Decompressor()

    def feed(self, data: bytes, most: int) -> bytes:
        found: bytes = self._object.process(data, output_buffer_limit=most)
        return found


class _Zstandard:
    """By the package of that name: it does not bound what it gives, so it is fed little at once."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._object = self._begin()

    def _begin(self) -> Any:
        return self._module.ZstdDecompressor(max_window_size=_MOST_WINDOW).decompressobj()

    def feed(self, data: bytes, most: int) -> bytes:
        found = bytearray()
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            while piece and len(found) < most:
                found += self._object.decompress(piece)
                piece = b""
                if self._object.eof:  # another frame may follow
                    piece, self._object = self._object.unused_data, self._begin()
            if len(found) >= most:
                break
        return bytes(found)


class _Zstd:
    """By Python's own module, from 3.14 on."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._object = module.ZstdDecompressor()

    def feed(self, data: bytes, most: int) -> bytes:
        parts, size = [], 0
        while size < most:
            part = self._object.decompress(data, most - size)
            parts.append(part)
            size += len(part)
            data = b""
            if self._object.eof:
                data, self._object = self._object.unused_data, self._module.ZstdDecompressor()
            if not data and not part:
                break
        return b"".join(parts)


@cache
def steps() -> dict[str, Callable[[], _Step]]:
    """How each encoding that is known here is decoded."""
    found: dict[str, Callable[[], _Step]] = {
        "gzip": lambda: _Deflate(zlib.MAX_WBITS | 16),
        "deflate": lambda: _Deflate(zlib.MAX_WBITS),
    }
    found["x-gzip"] = found["gzip"]
    brotli, zstandard, zstd = (_module(name) for name in ("brotli", "zstandard", "compression.zstd"))
    if brotli is not None and hasattr(brotli.Decompressor, "can_accept_more_data"):  # older ones know no bounds
        found["br"] = lambda: _Brotli(brotli)
    if zstandard is not None:
        found["zstd"] = lambda: _Zstandard(zstandard)
    elif zstd is not None:
        found["zstd"] = lambda: _Zstd(zstd)
    return found


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


class Decoder:
    """Decodes one body as it comes. `encodings` is the value of its Content-Encoding. Undecodable."""

    def __init__(self, encodings: str) -> None:
        names = [name for word in encodings.lower().split(",") if (name := word.strip()) not in ("", "identity")]
        if len(names) > _MOST_STEPS or not steps().keys() >= set(names):
            raise Undecodable(f"encodings: {', '.join(names)[:100]}")
        self._steps = [steps()[name]() for name in reversed(names)]
        self.cut = False  # there was more than was wanted: nothing that follows can be decoded

    def feed(self, data: bytes, most: int) -> bytes:
        """What the next piece says, up to `most` bytes of it. Undecodable."""
        for step in self._steps:
            try:
                data = step.feed(data, most)
            except Exception as error:  # each package has an error of its own
                raise Undecodable(f"{type(error).__name__}: {error}") from None
            if len(data) >= most:
                self.cut, data = True, data[:most]
        return data


def decoded(data: bytes, encodings: str, most: int) -> tuple[bytes, bool]:
    """A body, or its beginning, and whether all that is here was decoded. Undecodable."""
    decoder = Decoder(encodings)
    return decoder.feed(data, most), not decoder.cut


def narrowed(accepted: str) -> str:
    """An Accept-Encoding without what could not be looked at here."""
    words = [word.strip() for word in accepted.split(",")]
    kept = [word for word in words if word.partition(";")[0].strip().lower() in {*steps(), "identity"}]
    return accepted if len(kept) == len(words) else ", ".join(kept) or "identity"
