"""Plain HTTP to a server that a command runs or looks at."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


def connect(url: str, timeout: float) -> http.client.HTTPConnection:
    """A connection to the host of an address."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout)


def get_json(url: str, path: str, timeout: float, headers: Mapping[str, str] | None = None) -> Any:
    """JSON of a GET, None for an empty body. Raises OSError, HTTPException where there is no 200."""
    connection = connect(url, timeout)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise http.client.HTTPException(f"GET {path} gave {response.status}")
        return json.loads(body) if body.strip() else None
    finally:
        connection.close()
