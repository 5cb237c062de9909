"""Who asks: keys, what each of them opens, and the middleware that tells the routes.

Without any key everything is open, for a worker that only its own machine can reach. Otherwise everything
under /v1 needs a key; changing what a domain's draft does needs the admin key, which reads all domains but
generates nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from redraft_serving.http.errors import ApiError, Forbidden, Unauthorized
from redraft_serving.settings import ServingSettings

ADMIN = "admin_key"
_READING = ("GET", "HEAD")
_GUARDED = ("/v1/", "/tokenize", "/detokenize")
_STEERING = "/v1/drafts/"


@dataclass(frozen=True, slots=True)
class Caller:
    """What the key of a request stands for. Its name may be logged; the key itself is kept nowhere."""

    name: str | None = None
    """None: nobody asked for a key."""
    domains: tuple[str, ...] | None = None
    """Those it may name, its default first; None: all."""
    store: bool = True
    """False: nothing of its requests is kept for training."""
    admin: bool = False

    def sees(self, domain: str) -> bool:
        """Whether a domain may be named by, or shown to, this caller."""
        return self.domains is None or domain in self.domains

    def domain(self, named: str | None) -> str | None:
        """The domain that a request means by `named`, or the key's own; None: the worker's default.

        Raises Forbidden.
        """
        if not named:
            return None if self.domains is None else self.domains[0]
        if not self.sees(named):
            raise Forbidden(
                f"The key {self.name!r} isn't bound to the domain {named!r:.80}; "
                f"it may name {', '.join(self.domains or ())}."
            )
        return named


ANYONE = Caller()
OWNER = Caller(admin=True)
"""Everybody, where there are no keys at all."""


class Keyring:
    """The keys of a worker. Looking one up takes the same time whichever it is, and whether it is there."""

    def __init__(self, settings: ServingSettings) -> None:
        self._salt = secrets.token_bytes(32)
        self._callers = [(self._digest(key), caller) for key, caller in _callers(settings)]
        self._open = not self._callers
        self._has_admin = settings.admin_key is not None
        self._users = self._open or any(not caller.admin for _, caller in self._callers)

    def admit(self, method: str, path: str, authorization: str) -> Caller:
        """Who asks for a guarded path. Raises Unauthorized or Forbidden."""
        caller = self._find(authorization)
        reads = method in _READING
        if self._open:
            return OWNER
        if path.startswith(_STEERING) and not reads:
            return self._admin(caller)
        if not self._users:
            return caller or ANYONE
        if caller is None:
            raise Unauthorized
        if caller.admin and not reads:
            raise Forbidden("The admin key steers and reads; send requests under a key of their own.")
        return caller

    def _admin(self, caller: Caller | None) -> Caller:
        if caller is None:
            raise Unauthorized
        if not self._has_admin:
            raise Forbidden(
                "This changes what a domain serves, and the worker has no admin key for it; set "
                "serving.admin_key."
            )
        if not caller.admin:
            raise Forbidden("This changes what a domain serves, and needs the admin key.")
        return caller

    def _find(self, authorization: str) -> Caller | None:
        scheme, _, key = authorization.partition(" ")
        given = self._digest(key if scheme.lower() == "bearer" else "")
        found = None
        for digest, caller in self._callers:
            # All of them, and digests of one length: no time tells how far a guess got.
            if hmac.compare_digest(given, digest):
                found = caller
        return found

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._salt, key.encode("utf-8", "surrogatepass"), hashlib.sha256)


def _callers(settings: ServingSettings) -> Iterator[tuple[str, Caller]]:
    def secret(key: SecretStr) -> str:
        return key.get_secret_value()

    if settings.api_key is not None:
        yield secret(settings.api_key), Caller("api_key")
    if settings.admin_key is not None:
        yield secret(settings.admin_key), Caller(ADMIN, admin=True)
    for name, key in settings.api_keys.items():
        yield secret(key.key), Caller(name, None if key.domains == "*" else key.domains, key.store)


class KeyMiddleware:
    """401 or 403 for guarded paths; the routes find the Caller in the request's state."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self.app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not guarded(scope):
            await self.app(scope, receive, send)
            return
        try:
            given = Headers(scope=scope).get("authorization", "")
            caller = self._keyring.admit(scope["method"], scope["path"], given)
            scope["state"] |= {"caller": caller, "domains": caller.domains, "admin": caller.admin}
        except ApiError as error:
            answer = JSONResponse(error.body(), status_code=error.status, headers=error.headers)
            await answer(scope, receive, send)
            return
        await self.app(scope, receive, send)


def guarded(scope: Scope) -> bool:
    """Whether a path needs a key. Probes and /metrics don't."""
    path: str = scope["path"]
    return scope["method"] != "OPTIONS" and path.startswith(_GUARDED)


async def caller_of(request: Request) -> Caller:
    """Whose request it is. A path that no key guards has nobody: asking there is a mistake of ours."""
    return cast(Caller, request.state.caller)


CallerDep = Annotated[Caller, Depends(caller_of)]
