"""One log line per request that needs a key, where the settings ask for it. Never a key, never an answer."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redraft_serving.http.keys import Caller, guarded

logger = logging.getLogger(__name__)


class RequestLogMiddleware:
    """Status and time of a request, whose key it was, and what the routes left as `facts` in its state."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not guarded(scope):
            await self.app(scope, receive, send)
            return
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception:
            status = 500
            raise
        finally:
            _log(scope, status)


def _log(scope: Scope, status: int) -> None:
    """`none` stands for an unknown key, and status 0 for a client that left before its answer."""
    state = scope["state"]
    caller: Caller | None = state.get("caller")
    named = "none" if caller is None else caller.name or "open"
    facts = {
        "id": state["request_id"],
        "key": named,
        "seconds": f"{time.monotonic() - state['arrived']:.3f}",
        **state.get("facts", {}),
    }
    told = " ".join(f"{name}={value}" for name, value in facts.items())
    logger.info("%s %s %d %s", scope["method"], ascii(scope["path"])[1:-1], status, told)
