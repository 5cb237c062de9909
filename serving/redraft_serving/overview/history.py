"""This worker's last days in some hundred looks. Counts are kept raw; `curves` derives rates from them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass

from redraft_serving.engine.interface import CHAMPION, DraftStatistics, Engine
from redraft_serving.overview.times import DecodeTime, DecodeTimes

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
_RESOLUTION = 60
"""Looks `a` seconds old are kept `a / _RESOLUTION` seconds apart: after 10 min 10 s, after a day 24 min."""
_LONGEST_SECONDS = 14 * 86_400.0
_THIN_EVERY = 16
_MARKS = 100


@dataclass(frozen=True, slots=True)
class Counts:
    """What the champion arm's rounds did. `rounds`: of one row each, that proposed something."""

    rounds: int = 0
    proposed: int = 0
    tested: int = 0
    accepted: int = 0
    emitted: int = 0

    def grown(self, before: Counts, now: Counts) -> Counts:
        """These, and what a version counted from `before` to `now`. One that begins again begins at zero."""
        triples = list(zip(astuple(self), astuple(before), astuple(now), strict=True))
        again = any(new < old for _, old, new in triples)
        return Counts(*(total + new - (0 if again else old) for total, old, new in triples))


@dataclass(frozen=True, slots=True)
class DomainLook:
    """Counts of one domain since the history began; they never fall, whatever is swapped."""

    version: int | str
    counts: Counts
    decode: DecodeTime
    num_speculative_tokens: int
    state: str


@dataclass(frozen=True, slots=True)
class Look:
    """One moment, in seconds of the monotonic clock, so that a wall clock stepped back bends no curve."""

    at: float
    busy_seconds: float
    """Of the inference thread since the start: everything but idle."""
    domains: Mapping[str, DomainLook]


@dataclass(frozen=True, slots=True)
class Mark:
    """The first look that saw another version serve a domain."""

    at: float
    domain: str
    version: int | str
    before: int | str


class History:
    """Looks at `engine.statistics()`, thinned with age, and the changes of version between them.

    The acceptance is the champion arm's: the share of another arm belongs to its trial.
    """

    def __init__(
        self,
        engine: Engine,
        times: DecodeTimes,
        clock: Callable[[], float] = time.monotonic,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._engine = engine
        self._times = times
        self._clock = clock
        self._look_seconds = look_seconds
        self._lock = threading.Lock()
        self._looks: list[Look] = []
        self._marks: deque[Mark] = deque(maxlen=_MARKS)
        self._before: Mapping[tuple[str, int | str], Counts] = {}
        """Of the last look, by domain and version: a promoted challenger has counted before."""
        self._since_thinning = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redraft-history", daemon=True)

    def start(self) -> None:
        """Look every few seconds, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def looks(self) -> list[Look]:
        """Oldest first."""
        with self._lock:
            return list(self._looks)

    def marks(self, domain: str) -> list[Mark]:
        """Changes of version in a domain, oldest first."""
        with self._lock:
            return [mark for mark in self._marks if mark.domain == domain]

    def look(self) -> None:
        """Take one look now."""
        found = self._engine.statistics()
        now = self._clock()
        times = self._times.all()
        with self._lock:
            last = self._looks[-1].domains if self._looks else {}
            drafts = [draft for draft in found.drafts if draft.arm == CHAMPION]
            domains = {draft.domain: self._of(draft, last.get(draft.domain), times) for draft in drafts}
            self._mark(now, last, domains)
            self._before = {(draft.domain, draft.version): _counts(draft) for draft in found.drafts}
            busy = sum(value for phase, value in found.seconds.items() if phase != "idle")
            self._looks.append(Look(now, busy, domains))
            self._since_thinning += 1
            if self._since_thinning >= _THIN_EVERY:
                self._looks = thinned(self._looks, now)
                self._since_thinning = 0

    def _of(
        self, draft: DraftStatistics, last: DomainLook | None, times: Mapping[str, DecodeTime]
    ) -> DomainLook:
        """Add what the serving version counted since the last look."""
        before = self._before.get((draft.domain, draft.version), Counts())
        counts = last.counts if last else Counts()
        return DomainLook(
            draft.version,
            counts.grown(before, _counts(draft)),
            times.get(draft.domain, DecodeTime()),
            draft.num_speculative_tokens,
            draft.state,
        )

    def _mark(self, now: float, last: Mapping[str, DomainLook], domains: Mapping[str, DomainLook]) -> None:
        for domain, look in domains.items():
            if domain in last and last[domain].version != look.version:
                self._marks.append(Mark(now, domain, look.version, last[domain].version))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Exception:
                logger.exception("a look at the engine failed")
            self._stop.wait(self._look_seconds)


def thinned(looks: list[Look], now: float) -> list[Look]:
    """The looks that are far enough from the one kept before them for their age; the newest always stays."""
    kept: list[Look] = []
    for look in looks:
        age = now - look.at
        if age > _LONGEST_SECONDS:
            continue
        if not kept or look.at - kept[-1].at >= age / _RESOLUTION:
            kept.append(look)
    if looks and (not kept or kept[-1] is not looks[-1]):
        kept.append(looks[-1])
    return kept


def _counts(draft: DraftStatistics) -> Counts:
    return Counts(draft.rounds, draft.proposed, draft.tested, draft.accepted, draft.emitted)
