"""Connections of clients that are slow, or mean to be: no head, no rest of a body, no reading of an answer.

uvicorn waits for all three without end: its keep-alive time-out covers only the pause between two requests,
and each byte that comes puts it off.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from redraft_serving.settings import ServingSettings

logger = logging.getLogger(__name__)

_TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 39\r\n"
    b"connection: close\r\n\r\nThe head of the request came too slowly"
)


def uvicorn_options(settings: ServingSettings) -> dict[str, Any]:
    """Arguments of uvicorn.Config that hold a worker's limits on connections."""

    class Protocol(PatientProtocol):
        seconds = settings.client_seconds

    return {
        "http": Protocol,
        "h11_max_incomplete_event_size": settings.max_header_bytes,
        "limit_concurrency": settings.max_connections + 1,  # uvicorn refuses at the limit, not beyond it
        "server_header": False,
    }


def openness(settings: ServingSettings, address: str) -> str | None:
    """A sentence about an address that lets anybody in; None where keys are needed, or on loopback."""
    has_keys = settings.api_key or settings.api_keys
    if has_keys or ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return None
    may = "ask" if settings.admin_key else "ask, and steer drafts"
    return (
        f"anybody who reaches {address} may {may}; set serving.api_key, and serving.admin_key for operators"
    )


class PatientProtocol(H11Protocol):
    """uvicorn's own, with an end to its patience: `seconds` for each thing that a client owes."""

    seconds: float = 30.0

    _owed: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A head is owed from now on."""
        super().connection_made(transport)
        self._owe()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request. What is owed has one end, however many bytes of it come meanwhile."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE or self._answered_early():
            self._owe()
        else:
            self._settle()

    def on_response_complete(self) -> None:
        """Answered; the rest of the body is owed where it has not come, as it goes before the next head."""
        super().on_response_complete()
        if self._answered_early():
            self._owe()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is owed any more."""
        self._settle()
        self._has_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client has left much unread."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.seconds, self._abandon)

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        self._has_read()

    def _answered_early(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)

    def _owe(self) -> None:
        if self._owed is None:
            self._owed = self.loop.call_later(self.seconds, self._give_up)

    def _settle(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
            self._owed = None

    def _has_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        self._owed = None
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self.transport.write(_TOO_SLOW)
        self.transport.close()

    def _abandon(self) -> None:
        """Not close(): that would wait until everything is read."""
        self._unread = None
        logger.info("a client left its answer unread for %g s; its connection is closed", self.seconds)
        self.transport.abort()
