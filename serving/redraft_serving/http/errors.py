"""Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}` at every path.

ApiError
├── BadRequest        400  a field has a wrong or unsupported value; `param` names it
├── Unauthorized      401  the key is missing or wrong
├── Forbidden         403  the key opens something else
├── ModelNotFound     404
├── DomainNotFound    404
├── VersionNotFound   404
├── TooLate           408  the request took longer than it may
├── Conflict          409  what is asked for makes no sense now
├── QueueFull         429  with Retry-After
├── Unavailable       503  the engine is dead or stopping
└── GenerationFailed  500  the engine could not go on with this request
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-Id"
_NAMED = 8
"""Domains that an error names."""


class ApiError(Exception):
    """An answer that is not a success."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self, message: str, param: str | None = None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON body, also sent as an event inside a stream."""
        return error_body(self.message, self.type, self.param, self.code)


class BadRequest(ApiError):
    """A field has a wrong or unsupported value."""

    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param)
        self.code = code


class Unauthorized(ApiError):
    """The key is missing or wrong."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__(
            "The API key is missing or wrong; send it as `Authorization: Bearer <key>`.",
            headers={"WWW-Authenticate": "Bearer"},
        )


class Forbidden(ApiError):
    """The key is right and opens something else."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class ModelNotFound(ApiError):
    """The request names a model that this worker doesn't serve."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(
            f"The model {asked!r:.200} does not exist here; this worker serves {served!r}.", "model"
        )


class DomainNotFound(ApiError):
    """The path names a domain that this worker hasn't met."""

    status = 404
    type = "invalid_request_error"
    code = "domain_not_found"

    def __init__(self, asked: str, known: Sequence[str]) -> None:
        more = ", ..." if len(known) > _NAMED else ""
        names = ", ".join(known[:_NAMED])
        super().__init__(f"The domain {asked!r:.80} is not known here; known are {names}{more}.", "domain")


class VersionNotFound(ApiError):
    """The domain has no version of that number."""

    status = 404
    type = "invalid_request_error"
    code = "version_not_found"


class TooLate(ApiError):
    """The request took longer than a request may."""

    status = 408
    type = "timeout_error"
    code = "request_timeout"

    def __init__(self, seconds: float) -> None:
        # OpenAI's client asks again after 408, and would only run into the limit again.
        super().__init__(
            f"The request took longer than the {seconds:g} s that one may take here; ask for fewer tokens.",
            headers={"x-should-retry": "false"},
        )


class Conflict(ApiError):
    """What is asked for makes no sense now."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class QueueFull(ApiError):
    """Every slot and every waiting place is taken."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_after_seconds)})


class Unavailable(ApiError):
    """The engine is dead or stopping."""

    status = 503
    type = "service_unavailable_error"
    code = "unavailable"


class GenerationFailed(ApiError):
    """The engine could not go on with this request."""

    code = "generation_failed"


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def install_error_handlers(app: FastAPI) -> None:
    """Every error of every path leaves in the same form."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


async def _api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


async def _validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    message, param = describe(error.errors())
    return JSONResponse(error_body(message, "invalid_request_error", param), status_code=400)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    body = error_body(f"{error.detail}.", kind, code=code)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    request_id = getattr(request.state, "request_id", "")
    logger.error(
        "%s %r (%s) failed: %s: %s", request.method, request.url.path, request_id, type(error).__name__, error
    )
    body = error_body(unexpected(request_id), "server_error", code="internal")
    # Sent from outside all middleware; the server closes the connection after an exception.
    headers = {"Connection": "close", REQUEST_ID_HEADER: request_id}
    return JSONResponse(body, status_code=500, headers=headers)


def unexpected(request_id: str) -> str:
    """All that a client learns of a fault of ours: nothing of the code, and where to look for the rest."""
    return f"The server met an unexpected error; its log says more about request {request_id}."


def describe(errors: Any) -> tuple[str, str | None]:
    """(one sentence, path of the field) from the first of pydantic's errors."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"The body is not valid JSON: {first['ctx']['error']}.", None
    # Behind the field, pydantic names the branch of a union that it tried, which no client knows.
    parts = [part for part in first["loc"][1:] if isinstance(part, int) or part.isidentifier()]
    param = ".".join(str(part) for part in parts) or None
    message = first["msg"].removeprefix("Value error, ")
    if param is None:
        return "The body must be a JSON object, sent with Content-Type: application/json.", None
    if first["type"] in ("missing", "value_error"):
        return f"{param}: {message}.", param
    if first["type"].startswith(("model_", "dataclass_")):
        message = "Input should be an object"  # pydantic would name a class of ours
    return f"{param}: {message}; got {first['input']!r:.80}.", param
