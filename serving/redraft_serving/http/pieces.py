"""Pieces of a stream of at least so many tokens, whatever each round gave."""

from __future__ import annotations

from redraft_serving.engine.interface import Emission


class Pieces:
    """Holds back what choices emit until there are `interval` tokens of one, or its end.

    Sizes and times of pieces tell whoever sees the connection how many tokens each round accepted, and by
    that something of the text. With an interval well above a round's tokens they tell little.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: dict[int, list[Emission]] = {}

    @property
    def held(self) -> int:
        """Tokens that are held back."""
        return sum(len(one.token_ids) for held in self._held.values() for one in held)

    def add(self, index: int, emission: Emission) -> Emission | None:
        """What choice `index` has to send now, the new emission included; None: nothing yet."""
        if self._interval == 1:
            return emission
        held = self._held.setdefault(index, [])
        held.append(emission)
        if emission.finish_reason is None and sum(len(one.token_ids) for one in held) < self._interval:
            return None
        del self._held[index]
        return _joined(held)

    def rest(self) -> list[tuple[int, Emission]]:
        """What is held, for a stream that ends early."""
        held, self._held = self._held, {}
        return [(index, _joined(one)) for index, one in held.items()]


def _joined(emissions: list[Emission]) -> Emission:
    last = emissions[-1]
    return Emission(
        text="".join(one.text for one in emissions),
        token_ids=tuple(token for one in emissions for token in one.token_ids),
        logprobs=tuple(logprob for one in emissions for logprob in one.logprobs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        error=last.error,
        statistics=last.statistics,
    )
