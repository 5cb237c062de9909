"""Whether a server answers, and for how long what it said last has been standing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redraft_models.errors import RegistryError
from redraft_queue.errors import QueueError

logger = logging.getLogger(__name__)


class Source:
    """Redis or MLflow, as one reader of it sees it. `up` is None until it was asked for the first time."""

    def __init__(self, name: str, configured: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._configured = configured
        self._clock = clock
        self._answered: float | None = None
        self.up: bool | None = None

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Within the block the server is asked; its errors end the block, are noted and go no further."""
        try:
            yield
        except (RegistryError, QueueError) as error:
            if self.up is not False:
                logger.warning("the overview keeps what %s said last: %s", self._name, error)
            self.up = False
        else:
            self._answered = self._clock()
            self.up = True

    def card(self) -> dict[str, Any]:
        """`stale_seconds`: since the last answer, where the server is away; None if it never answered."""
        stale = None
        if self.up is False and self._answered is not None:
            stale = round(self._clock() - self._answered, 1)
        return {"configured": self._configured, "up": self.up, "stale_seconds": stale}
