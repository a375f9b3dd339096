"""The lifespan of an ASGI application: its start before the first request, and its end after the last."""

from __future__ import annotations

import asyncio
from typing import Any

from fleetgate.front.asgi import VERSIONS, App, Message


class StartFailed(Exception):
    """The application says that it cannot start."""


class Lifespan:
    """One application. An application that knows no lifespan is used without."""

    def __init__(self, app: App) -> None:
        self.state: dict[str, Any] = {}  # what the application wants every request to have in `scope["state"]`
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message | None] = asyncio.Queue()  # None: it has returned, or raised
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait until the application is ready. StartFailed."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        answer = await self._ask("startup")
        if answer is not None and answer["type"] == "lifespan.startup.failed":
            await self._task
            raise StartFailed(answer.get("message", ""))

    async def stop(self) -> None:
        """Wait until the application has ended."""
        if self._task is None:
            return
        if not self._task.done():
            await self._ask("shutdown")
        await self._task

    async def _ask(self, event: str) -> Message | None:
        await self._to_app.put({"type": f"lifespan.{event}"})
        return await self._from_app.get()

    async def _run(self) -> None:
        try:
            await self._app(
                {"type": "lifespan", "asgi": VERSIONS, "state": self.state}, self._to_app.get, self._from_app.put
            )
        except Exception:
            pass  # the specification: an application that raises at this scope has no lifespan
        finally:
            await self._from_app.put(None)
