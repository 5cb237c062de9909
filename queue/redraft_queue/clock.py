"""When a domain's clock strikes: every so many seconds, or by a crontab in UTC. Pure arithmetic on
milliseconds since the epoch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

_FIELDS = ("minute", "hour", "day", "month", "weekday")
_NUMBERS = re.compile(r"(\*|\d+-\d+)(/[1-9]\d*)?|\d+")
_NAMES = re.compile(r"(\*|\w+-\w+)(/[1-9]\d*)?|\w+")
_LONGEST_SECONDS = 366 * 24 * 3600
_HELP = 'write seconds, or five fields like "*/30 8-18 * * mon-fri" (minute hour day month weekday, UTC)'


@dataclass(frozen=True)
class Period:
    """Strikes `seconds` after the last round was asked for."""

    seconds: float

    def next_after(self, ms: int) -> int:
        """The first stroke after a round that was asked for at `ms`."""
        return ms + max(1, round(self.seconds * 1000))

    def first_from(self, ms: int, slack_ms: int) -> int:
        """The stroke of a wait that ends at `ms`."""
        return ms


@dataclass(frozen=True)
class Crontab:
    """Strikes where all five fields match, as Celery reads them (a day has to match day *and* weekday)."""

    text: str

    @cached_property
    def _table(self) -> Any:
        from celery.schedules import crontab

        minute, hour, day, month, weekday = self.text.split()
        # Celery asks for the present time and throws it away where only the next stroke is wanted.
        return crontab(minute, hour, weekday, day, month, nowfun=lambda: datetime.now(UTC))

    def next_after(self, ms: int) -> int:
        """The first stroke in a later minute than `ms`."""
        last, delta, _ = self._table.remaining_delta(datetime.fromtimestamp(ms / 1000, UTC), tz=UTC)
        return int((last + delta).timestamp()) * 1000

    def first_from(self, ms: int, slack_ms: int) -> int:
        """The first stroke later than `slack_ms` before `ms`: a round is asked for a little after its
        stroke, and a wait counted from there must not miss the stroke that it is meant to end with.
        """
        return self.next_after(ms - slack_ms)


Clock = Period | Crontab


@lru_cache(maxsize=1024)
def clock_of(schedule: float | str) -> Clock:
    """The clock that a setting describes. Raises ValueError in one sentence."""
    if isinstance(schedule, str):
        return _crontab(schedule)
    if not math.isfinite(schedule) or not 0 < schedule <= _LONGEST_SECONDS:
        raise ValueError(f"{schedule:g} is no period; use more than 0 and at most {_LONGEST_SECONDS} seconds")
    return Period(float(schedule))


def _crontab(text: str) -> Crontab:
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise ValueError(f"{text!r:.80} has {len(parts)} fields, but a crontab has five; {_HELP}")
    for name, part in zip(_FIELDS, parts, strict=True):
        # Celery's parser reads the beginning of "*/5-7" and forgets the rest, and knows "mon" as a minute.
        pattern = _NAMES if name in ("month", "weekday") else _NUMBERS
        if not all(pattern.fullmatch(piece) for piece in part.split(",")):
            raise ValueError(f"the {name} of {text!r:.80} can't be read: {part!r:.40}; {_HELP}")
    clock = Crontab(text)
    try:
        clock.next_after(0)
    except Exception as error:  # Celery raises its own and built-in kinds
        raise ValueError(f"{text!r:.80} is no crontab ({str(error).rstrip('.')}); {_HELP}") from error
    return clock
