"""What one request may cost before anything is known of it: size of its head, size and time of its body."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redraft_serving.http.errors import error_body


class LimitMiddleware:
    """431 for a head and 413 for a body that is too large, 408 for a body that comes too slowly.

    A body is refused before it is read where its length is announced.
    """

    def __init__(self, app: ASGIApp, max_head: int, max_body: int, body_seconds: float) -> None:
        self.app = app
        self._max_head = max_head
        self._max_body = max_body
        self._body_seconds = body_seconds
        self._too_long = f"The body has more than {max_body} bytes; send less at once."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self.app(scope, _Body(receive, self._max_body, self._too_long, self._body_seconds), send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        head = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        head += sum(len(name) + len(value) for name, value in scope["headers"])
        if head > self._max_head:
            text = f"The head of the request has {head} bytes; at most {self._max_head} are taken."
            return _response(431, text, "head_too_large")
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_body:
            return _response(413, self._too_long, "content_too_large")
        return None


class _Body:
    """`receive` of one request, which counts and times until its body is whole."""

    def __init__(self, receive: Receive, most: int, too_long: str, seconds: float) -> None:
        self._receive = receive
        self._most = most
        self._too_long = too_long
        self._seconds = seconds
        self._until = asyncio.get_running_loop().time() + seconds
        self._size = 0
        self._whole = False

    async def __call__(self) -> Message:
        """The next message. Raises HTTPException: FastAPI makes a 400 of anything else here."""
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            # The rest of the body is still to come: nothing else can be asked on this connection.
            raise HTTPException(
                408,
                f"The body took longer than {self._seconds:g} s to arrive; send it faster",
                headers={"Connection": "close"},
            ) from None
        self._size += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._size > self._most:
            raise HTTPException(413, self._too_long.removesuffix("."))
        return message


def _response(status: int, message: str, code: str) -> JSONResponse:
    return JSONResponse(error_body(message, "invalid_request_error", code=code), status_code=status)
