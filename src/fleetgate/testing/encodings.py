"""Content encodings of the fake provider: gzip, br and zstd, for whole bodies and for streams.

The rule: each piece of a stream is flushed, so a client can read it at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, Protocol


class Encoder(Protocol):
    name: str

    def add(self, data: bytes) -> bytes:
        """These bytes, encoded and flushed."""

    def finish(self) -> bytes: ...


class GzipEncoder:
    name = "gzip"

    def __init__(self) -> None:
        self._object = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)

    def add(self, data: bytes) -> bytes:
        return self._object.compress(data) + self._object.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        return self._object.flush()


class BrotliEncoder:
    name = "br"

    def __init__(self) -> None:
        self._object: Any = import_module("brotli").Compressor(quality=4)

    def add(self, data: bytes) -> bytes:
        encoded: bytes = self._object.process(data) + self._object.flush()
        return encoded

    def finish(self) -> bytes:
        rest: bytes = self._object.finish()
        return rest


class ZstdEncoder:
    name = "zstd"

    def __init__(self) -> None:
        self._module: Any = import_module("zstandard")
        self._object = self._module.ZstdCompressor().compressobj()

    def add(self, data: bytes) -> bytes:
        encoded: bytes = self._object.compress(data) + self._object.flush(self._module.COMPRESSOBJ_FLUSH_BLOCK)
        return encoded

    def finish(self) -> bytes:
        rest: bytes = self._object.flush()
        return rest


_ENCODERS: dict[str, Callable[[], Encoder]] = {"gzip": GzipEncoder, "br": BrotliEncoder, "zstd": ZstdEncoder}


def choose_encoder(offered: Collection[str], accepted: str) -> Encoder | None:
    """The first encoding of the provider that the client accepts; None: the body is sent unencoded."""
    words = {word.partition(";")[0].strip().lower() for word in accepted.split(",")}
    name = next((name for name in offered if name in words), None)
    return None if name is None else _ENCODERS[name]()
