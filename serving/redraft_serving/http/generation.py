"""One request's way through the engine: submit its choices, receive what they emit, cancel the unread."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from redraft_serving.engine.interface import (
    Emission,
    Engine,
    EngineDead,
    EngineFull,
    GenerationRequest,
    RequestStatistics,
    TokenLogprob,
)
from redraft_serving.http.errors import GenerationFailed, QueueFull, TooLate, Unavailable

_LIVENESS_SECONDS = 1.0
"""How often a request that hears nothing looks whether the engine is still alive."""


@dataclass
class Output:
    """What one choice has emitted so far."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    statistics: RequestStatistics | None = None
    gaps: list[float] = field(default_factory=list)
    """Seconds between arrivals of tokens. Those of one round arrive together: one gap per round."""
    last_arrival: float | None = None

    def arrive(self, now: float) -> None:
        """Tokens are here."""
        if self.last_arrival is not None:
            self.gaps.append(now - self.last_arrival)
        self.last_arrival = now

    def add(self, emission: Emission) -> None:
        """Append one round."""
        self.text.append(emission.text)
        self.token_ids.extend(emission.token_ids)
        self.logprobs.extend(emission.logprobs)
        if emission.finish_reason is not None:
            self.finish_reason = emission.finish_reason
            self.stop_reason = emission.stop_reason
            self.statistics = emission.statistics


class Generation:
    """All choices of one request. Iterate it for (choice, emission) in the order they come.

    `close` must be called at the end, whatever the end is: it frees the slots of choices that still run.
    `seconds` is what it may take from now on; `limit` is what its client is told.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[GenerationRequest],
        seconds: float = math.inf,
        limit: float = math.inf,
    ) -> None:
        self.requests = tuple(requests)
        self.outputs = [Output() for _ in requests]
        self.submitted = time.monotonic()
        self._deadline = self.submitted + seconds
        self._limit = limit
        self.first_token: float | None = None
        self.last_token: float | None = None
        self._engine = engine
        self._queue: asyncio.Queue[tuple[int, Emission]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._running = 0

    @property
    def request_id(self) -> str:
        """The engine's id of this request."""
        return self.requests[0].request_id

    @property
    def completion_tokens(self) -> int:
        """Tokens emitted by all choices together."""
        return sum(len(output.token_ids) for output in self.outputs)

    def submit(self) -> None:
        """Hand every choice to the engine. Raises QueueFull or Unavailable; then none of them runs."""
        try:
            for index, request in enumerate(self.requests):
                self._engine.submit(request, lambda emission, index=index: self._receive(index, emission))  # type: ignore[misc]
                self._running += 1
        except Exception as error:
            self.close()
            if isinstance(error, EngineFull):
                raise QueueFull(f"The server is busy: {error}.", error.retry_after_seconds) from error
            if isinstance(error, EngineDead):
                raise Unavailable(
                    "The inference engine has stopped; the server has to be restarted."
                ) from error
            raise

    def close(self) -> None:
        """Cancel what still runs. Safe to call twice."""
        if self._running:
            self._running = 0
            self._engine.cancel(self.request_id)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Emission]]:
        while self._running:
            index, emission = await self._next()
            if emission.token_ids:
                self.last_token = time.monotonic()
                self.first_token = self.first_token or self.last_token
                self.outputs[index].arrive(self.last_token)
            self.outputs[index].add(emission)
            if emission.finish_reason is not None:
                self._running -= 1
                self._check(emission)
            yield index, emission

    async def collect(self) -> None:
        """Wait until every choice has finished."""
        async for _ in self:
            pass

    def _receive(self, index: int, emission: Emission) -> None:
        """On the inference thread, which must never fail because of a client."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, emission))
        except RuntimeError:
            return  # the server's loop has ended, and with it whoever listened

    async def _next(self) -> tuple[int, Emission]:
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self.close()
                raise TooLate(self._limit)
            if not self._queue.empty():
                return self._queue.get_nowait()
            try:
                # Not wait_for: before Python 3.12 it may swallow the cancellation of a client that has left.
                async with asyncio.timeout(min(left, _LIVENESS_SECONDS)):
                    return await self._queue.get()
            except TimeoutError:
                if not self._engine.alive and self._queue.empty():
                    raise Unavailable("The inference engine stopped during this request.") from None

    def _check(self, emission: Emission) -> None:
        """An end that is no answer ends the request with an error."""
        if emission.finish_reason == "error":
            self.close()
            raise GenerationFailed(f"The generation failed: {emission.error or 'the engine gave no reason'}.")
        if emission.finish_reason == "abort":
            self.close()
            raise Unavailable("The server stopped before this answer was complete.")
