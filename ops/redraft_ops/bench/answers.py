"""One answered request as its client saw it: which tokens came when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Chunk = tuple[float, int]
"""Seconds since the request was due, and the tokens that arrived then."""


@dataclass(frozen=True)
class Ask:
    """One request to send: the same for every configuration."""

    index: int
    """Which prompt of the run it is."""
    ids: tuple[int, ...]
    """The prompt as the target's tokenizer reads it, chat template included."""
    max_tokens: int
    text: str | None = None
    """The user's own text, for servers that tokenize by themselves; None where only ids are known."""
    domain: str | None = None
    ignore_eos: bool = False
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """What came back. Times are seconds since the request was due."""

    index: int
    ids: tuple[int, ...] = ()
    """The answer, an end token included; empty where the server tells none."""
    text: str | None = None
    """As the server decoded it; None where only ids were asked for."""
    chunks: tuple[Chunk, ...] = ()
    seconds: float = 0.0
    rounds: int = 0
    tested: int = 0
    accepted: int = 0
    error: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens that arrived."""
        return sum(tokens for _, tokens in self.chunks)

    @property
    def first_token(self) -> float | None:
        """Time to the first token; None where none came."""
        return self.chunks[0][0] if self.chunks else None

    @property
    def chunk_gaps(self) -> list[float]:
        """Time between each two chunks: what a reader sees as a pause."""
        times = [arrived for arrived, _ in self.chunks]
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def token_gaps(self) -> list[float]:
        """Time per token of every chunk but the first, once for each of its tokens."""
        tokens = [tokens for _, tokens in self.chunks[1:]]
        pairs = zip(self.chunk_gaps, tokens, strict=True)
        return [gap / count for gap, count in pairs for _ in range(count)]

    @property
    def mean_gap(self) -> float | None:
        """Mean time per token after the first one (vLLM's "time per output token")."""
        if self.tokens < 2:
            return None
        return (self.chunks[-1][0] - self.chunks[0][0]) / (self.tokens - 1)


@dataclass(frozen=True)
class Block:
    """Requests that one configuration answered together, and how long they took in all."""

    answers: tuple[Answer, ...]
    seconds: float

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def tokens_per_second(self) -> float | None:
        """Reading the prompts included; None where nothing came."""
        return self.tokens / self.seconds if self.tokens and self.seconds > 0 else None


def spread(total: int, times: Sequence[float]) -> tuple[Chunk, ...]:
    """`total` tokens over the chunks of a server that does not say how many each holds, evenly."""
    bounds = [total * number // len(times) for number in range(len(times) + 1)] if times else []
    return tuple((at, bounds[n + 1] - bounds[n]) for n, at in enumerate(times))
