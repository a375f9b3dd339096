"""The bodies of responses that a transport returns: they hold the slot until they end or are closed.

httpx asks for instances of its own classes, and there are two packages: so the classes are made for a package.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache
from types import ModuleType
from typing import Any

from fleetgate.httpx.gated_call import GatedCall


@cache
def stream_class(library: ModuleType) -> Any:
    """The class of bodies for synchronous programs."""

    class GatedStream(library.SyncByteStream):  # type: ignore[misc,name-defined]
        """A body that releases the slot of its call."""

        def __init__(self, body: Any, call: GatedCall) -> None:
            self._body, self._call = body, call

        def __iter__(self) -> Iterator[bytes]:
            try:
                for piece in self._body:
                    self._call.feed(piece)
                    yield piece
            except BaseException as error:
                self._call.end(error)
                raise
            self._call.end(complete=True)

        def close(self) -> None:
            try:
                self._body.close()
            finally:
                self._call.end()

        def __del__(self) -> None:
            self._call.abandon()

    return GatedStream


@cache
def async_stream_class(library: ModuleType) -> Any:
    """The same for asyncio programs."""

    class GatedAsyncStream(library.AsyncByteStream):  # type: ignore[misc,name-defined]
        """A body that releases the slot of its call."""

        def __init__(self, body: Any, call: GatedCall) -> None:
            self._body, self._call = body, call

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for piece in self._body:
                    self._call.feed(piece)
                    yield piece
            except BaseException as error:
                self._call.end(error)
                raise
            self._call.end(complete=True)

        async def aclose(self) -> None:
            try:
                await self._body.aclose()
            finally:
                self._call.end()

        def __del__(self) -> None:
            self._call.abandon()

    return GatedAsyncStream
