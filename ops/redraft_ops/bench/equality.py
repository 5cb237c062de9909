"""Are two greedy answers the same, and if not, was it more than rounding?

Speculation does not change the law, but it changes the shapes of the products, and with them the rounding:
where the target's two best tokens are all but equal, either may come out. Such a fork is counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from redraft_ops.bench.answers import Answer, Ask

NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""Largest difference of two logits that rounding in a dtype may turn round: some ten times the difference
between two ways of computing the same logits. Wrong tokens are several units apart.
"""

Gap = Callable[[Sequence[int], int, int], float]
"""Difference of the target's logits of two tokens after a prefix."""


@dataclass(frozen=True)
class Fork:
    """The first place where two answers differ."""

    index: int
    """Which prompt."""
    position: int
    """In the answer."""
    found: int | None
    """Token ids; None where the answer had ended."""
    expected: int | None


@dataclass(frozen=True)
class Comparison:
    """Answers against their references."""

    compared: int
    near_ties: int
    different: tuple[Fork, ...]

    @property
    def equal(self) -> bool:
        """True where nothing differs but at near ties, and something was compared."""
        return self.compared > 0 and not self.different


def fork_of(found: Sequence[int], expected: Sequence[int], index: int) -> Fork | None:
    """Where two answers part; None where they are the same."""
    for position, (one, other) in enumerate(zip_longest(found, expected)):
        if one != other:
            return Fork(index, position, one, other)
    return None


def compare(
    answers: Sequence[Answer], references: Sequence[Answer], asks: Mapping[int, Ask], tie: float, gap: Gap
) -> Comparison:
    """Compare by token ids. A failed answer differs at its beginning; `gap` is asked only at forks."""
    expected = {answer.index: answer.ids for answer in references if answer.error is None}
    forks, ties = [], 0
    compared = [answer for answer in answers if answer.index in expected]
    for answer in compared:
        if answer.error is not None:
            forks.append(Fork(answer.index, 0, None, None))
            continue
        fork = fork_of(answer.ids, expected[answer.index], answer.index)
        if fork is None:
            continue
        if _is_tie(fork, asks[fork.index].ids + answer.ids[: fork.position], tie, gap):
            ties += 1
        else:
            forks.append(fork)
    return Comparison(len(compared), ties, tuple(forks))


def _is_tie(fork: Fork, prefix: Sequence[int], tie: float, gap: Gap) -> bool:
    if fork.found is None or fork.expected is None:
        return False
    return gap(prefix, fork.found, fork.expected) <= tie


def same_texts(answers: Sequence[Answer], texts: Mapping[int, str]) -> bool | None:
    """Whether a server that tells no ids gave the reference texts; None where there is nothing to compare."""
    pairs = [(answer, texts[answer.index]) for answer in answers if answer.index in texts]
    return all(answer.error is None and answer.text == text for answer, text in pairs) if pairs else None
