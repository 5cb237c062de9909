"""A proposer whose acceptance is chosen, to tell the engine's speed from the draft's quality.

It runs the real draft, at its full cost, then replaces each drafted token: with probability a by the token
that the target is known to say next, else by another one. Greedy requests only; the answers are recorded
beforehand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from redraft_serving.engine.local import LocalEngine
from redraft_serving.engine.rows import Row

Ids = tuple[int, ...]


class KnownAnswers:
    """What the target says after each prompt. Rounding may fork an answer, so a prompt can have several."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._answers: dict[Ids, list[Ids]] = {}
        self._draws: dict[Ids, list[float]] = {}
        self.missed = 0
        """Tokens asked for that no known answer had; set it to 0 to count anew."""

    def learn(self, prompt: Ids, answer: Ids) -> None:
        """Keep an answer, unless one that is known begins with it."""
        known = self._answers.setdefault(prompt, [])
        if not any(other[: len(answer)] == answer for other in known):
            known.append(answer)

    def draft(self, prompt: Ids, said: Ids, count: int, rate: float) -> list[int]:
        """At most `count` tokens to propose after what was said: each right with probability `rate`.

        Whether a place of an answer is drafted rightly is the same draw in every configuration. Nothing where
        no known answer begins as this one did.
        """
        draws = self._draws_of(prompt, len(said) + count)
        return [
            token if draws[len(said) + place] < rate else (token + 1) % self._vocab_size
            for place, token in enumerate(self._next(prompt, said, count))
        ]

    def _next(self, prompt: Ids, said: Ids, count: int) -> Ids:
        for answer in self._answers.get(prompt, ()):
            if len(answer) > len(said) and answer[: len(said)] == said:
                return answer[len(said) : len(said) + count]
        self.missed += count
        return ()

    def _draws_of(self, prompt: Ids, length: int) -> list[float]:
        if len(self._draws.get(prompt, ())) < length:
            # A hash of whole numbers is the same in every process.
            rng = random.Random(hash(prompt))
            self._draws[prompt] = [rng.random() for _ in range(2 * length)]
        return self._draws[prompt]


class ControlledProposer:
    """Wraps the real proposer; only the drafted tokens are changed, everything else is passed on."""

    def __init__(self, inner: Any, answers: KnownAnswers, rates: Mapping[str, float]) -> None:
        self._inner, self._answers, self._rates = inner, answers, rates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, rows: Sequence[Row], *arguments: Any, **named: Any) -> Any:
        """The inner proposal with its tokens [B, K] replaced. Acceptance is that of the row's domain."""
        proposal = self._inner.propose(rows, *arguments, **named)
        tokens = proposal.tokens.clone()
        for b, row in enumerate(rows):
            limit, rate = proposal.limits[b], self._rates.get(row.request.domain)
            if limit and rate is not None:
                prompt = row.request.prompt_ids
                own = self._answers.draft(prompt, tuple(row.tokens[len(prompt) :]), limit, rate)
                tokens[b, : len(own)] = torch.tensor(own, dtype=tokens.dtype, device=tokens.device)
        return replace(proposal, tokens=tokens)


def install(engine: LocalEngine, answers: KnownAnswers, rates: Mapping[str, float]) -> None:
    """Put the wrapper between draft and rounds, before the engine is started. `rates`: by domain."""
    rounds: Any = engine.parts.rounds
    rounds.proposer = ControlledProposer(rounds.proposer, answers, rates)
