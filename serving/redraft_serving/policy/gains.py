"""Gain as measured: tokens per second of speculating rounds over those of plain rounds of as many rows.

Times are taken at the machine's common speed, so that a slow minute counts for neither side. Where the
measured gain is clearly below 1 although the model promises more, speculation is refused for a while.
"""

from __future__ import annotations

from math import sqrt

SPECULATING, PLAIN = 0, 1
DECAY = (0.998, 0.98)
"""Per round: about the last 500 speculating and 50 plain ones count."""
ENOUGH = (100.0, 8.0)
SOME = (5.0, 3.0)
DEVIATIONS = 3.0


class _Rate:
    """Decayed sums of one side."""

    __slots__ = ("_decay", "_squares", "rounds", "seconds", "tokens")

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.rounds = self.tokens = self.seconds = self._squares = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """One round; `tokens` and `seconds` of all its rows."""
        expected = self.rate * seconds
        self._squares = self._squares * self._decay + ((tokens - expected) ** 2 if self.rounds else 0.0)
        self.rounds = self.rounds * self._decay + 1.0
        self.tokens = self.tokens * self._decay + tokens
        self.seconds = self.seconds * self._decay + seconds

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def error(self) -> float:
        """Relative standard error of the rate (ratio estimator)."""
        return sqrt(self._squares) / self.tokens if self.tokens else 1.0


class Gains:
    """Measured gains by domain and number of rows, with the vetoes that follow from them."""

    def __init__(self, margin: float, veto_rounds: int) -> None:
        self._margin, self._veto_rounds = margin, veto_rounds
        self._sides: dict[tuple[str, int], tuple[_Rate, _Rate]] = {}
        self._vetoes: dict[tuple[str, int], tuple[int, float]] = {}

    def observe(self, domain: str, rows: int, side: int, tokens: float, seconds: float) -> None:
        """One decided or baseline round that the domain had rows in."""
        sides = self._sides.get((domain, rows))
        if sides is None:
            sides = self._sides[domain, rows] = (_Rate(DECAY[SPECULATING]), _Rate(DECAY[PLAIN]))
        sides[side].add(tokens, seconds)

    def gain(self, domain: str, rows: int) -> float | None:
        """Measured gain; None without a few rounds of each side."""
        sides = self._sides.get((domain, rows))
        if sides is None or any(side.rounds < few for side, few in zip(sides, SOME, strict=True)):
            return None
        return sides[SPECULATING].rate / sides[PLAIN].rate

    def judge(self, domain: str, rows: int, clock: int) -> bool:
        """Veto speculation where it measured clearly slower than plain decoding; True on a new veto."""
        sides = self._sides.get((domain, rows))
        if sides is None or any(side.rounds < enough for side, enough in zip(sides, ENOUGH, strict=True)):
            return False
        gain = sides[SPECULATING].rate / sides[PLAIN].rate
        error = sqrt(sides[SPECULATING].error ** 2 + sides[PLAIN].error ** 2)
        if gain * (1.0 + DEVIATIONS * error) >= 1.0 - self._margin:
            return False
        self._vetoes[domain, rows] = (clock + self._veto_rounds, gain)
        self._sides[domain, rows] = (_Rate(DECAY[SPECULATING]), sides[PLAIN])
        return True

    def veto(self, domain: str, rows: int, clock: int) -> float | None:
        """The measured gain that forbids speculation now, if one does."""
        if not self._vetoes:
            return None
        until, gain = self._vetoes.get((domain, rows), (0, 0.0))
        return gain if clock < until else None

    def forget(self, domain: str) -> None:
        """The domain's draft changed: what was measured with the old one says nothing."""
        for key in [key for key in self._sides if key[0] == domain]:
            del self._sides[key]
        self._vetoes = {key: value for key, value in self._vetoes.items() if key[0] != domain}
