"""The dashboard's page at `/` and its files, all from the package. The page is open, its data need a key."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_HEADERS = {
    # No inline script or style, no other host, in nobody's frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_PAGE = "index.html"


def _read(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    """Every file of the page by its path: a request can name these and no others."""
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _read(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _TYPES:
            found[prefix + entry.name] = entry.read_bytes()
    return found


_FILES = _read(files("redraft_serving") / "dashboard")


@router.get("/")
def page(request: Request) -> Response:
    """The page itself."""
    return _answer(_PAGE, request)


@router.get("/dashboard/{name:path}")
def file(name: str, request: Request) -> Response:
    """A file of the page."""
    if name not in _FILES:
        raise HTTPException(404, "the dashboard has no such file")
    return _answer(name, request)


def _answer(name: str, request: Request) -> Response:
    content = _FILES[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers={**headers, "Content-Type": _TYPES[name.rpartition(".")[2]]})
