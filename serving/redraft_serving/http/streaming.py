"""Server-sent events, and what happens when the client is gone before the answer is."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from redraft_serving.http.errors import ApiError, GenerationFailed, unexpected

logger = logging.getLogger(__name__)

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """The client closed its connection; nobody reads the answer."""


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def guarded(events: AsyncIterator[bytes], request_id: str) -> AsyncIterator[bytes]:
    """The events, then [DONE]. The status is sent by then, so an error becomes one last event."""
    try:
        async for one in events:
            yield one
    except ApiError as error:
        yield event(error.body())
    except Exception:
        logger.exception("the stream of request %s failed", request_id)
        yield event(GenerationFailed(unexpected(request_id)).body())
    yield DONE


class EventStream(Response):
    """A stream of events that ends with the client's connection; `close` is called once, at any end.

    Starlette's StreamingResponse leaves an interrupted generator to the garbage collector, and with it the
    slot of the request.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        self._events = events
        self._close = close
        self.status_code = 200
        self.background = None
        # Proxies must not hold events back.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._send(send))
        except ClientGone:
            return
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._events:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def answer_or_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or ClientGone as soon as the client has left; `work` is cancelled then."""
    return await until_gone(request.receive, work)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` beside a watch on the connection. Raises ClientGone."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
