"""Pure ASGI middleware: request ids, key, size. (BaseHTTPMiddleware would hide disconnects.)"""

from __future__ import annotations

import re
import secrets
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redraft_serving.http.errors import REQUEST_ID_HEADER, error_body

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestIdMiddleware:
    """Every response carries X-Request-Id: the client's own where it is a plain token, else a fresh one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


class ApiKeyMiddleware:
    """401 for anything under /v1 without the key. Probes and /metrics stay open."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _guarded(scope) or self._authorised(scope):
            await self.app(scope, receive, send)
            return
        message = "The API key is missing or wrong; send it as `Authorization: Bearer <key>`."
        headers = {"WWW-Authenticate": "Bearer"}
        await _refusal(401, message, "invalid_api_key", headers)(scope, receive, send)

    def _authorised(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get("authorization", "")
        return secrets.compare_digest(given.encode("latin-1"), self._expected)


class BodyLimitMiddleware:
    """413 for a body of more than `max_bytes`, before it is read where its length is announced."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._message = f"The body has more than {max_bytes} bytes; send less at once."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            await _refusal(413, self._message, "content_too_large")(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                raise HTTPException(413, self._message.removesuffix("."))
            return message

        await self.app(scope, counted, send)


def _refusal(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> JSONResponse:
    body = error_body(message, "invalid_request_error", code=code)
    return JSONResponse(body, status_code=status, headers=headers)


def _guarded(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] != "OPTIONS" and (path.startswith(("/v1/", "/tokenize", "/detokenize")))
