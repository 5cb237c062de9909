"""The request's id. Pure ASGI, as all middleware here: BaseHTTPMiddleware would hide disconnects."""

from __future__ import annotations

import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redraft_serving.http.errors import REQUEST_ID_HEADER

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestIdMiddleware:
    """Every response carries X-Request-Id: the client's own where it is a plain token, else a fresh one.

    The routes find it, and when the request arrived (`time.monotonic`), in the request's state.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"], state["arrived"] = request_id, time.monotonic()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)
