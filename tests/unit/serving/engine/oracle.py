"""The target's own greedy answer without any cache, batch or draft: what every other answer must equal."""

from __future__ import annotations

from typing import Any

import torch

TIE = 1e-4
"""Prompts whose best two logits come closer than this anywhere are left out: rounding may decide them."""


def greedy(model: Any, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """(the answer's ids, the smallest gap between the best two logits)."""
    ids, gap = list(prompt), float("inf")
    with torch.inference_mode():
        for _ in range(tokens):
            best = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
    return ids[len(prompt) :], gap


def accepted_per_round(target: Any, draft: Any, prompt: list[int], tokens: int, k: int) -> list[int]:
    """Greedy speculation without caches: how many drafted tokens each round keeps."""
    ids, accepted = list(prompt), []
    while len(ids) - len(prompt) < tokens:
        limit = min(k, tokens - (len(ids) - len(prompt)) - 1)
        drafted = greedy(draft, ids, limit)[0]
        wanted = greedy(target, ids, limit + 1)[0]
        kept = next((i for i in range(limit) if drafted[i] != wanted[i]), limit)
        ids += wanted[: kept + 1]
        accepted.append(kept)
    return accepted


def random_prompts(count: int, vocabulary: int, seed: int, longest: int = 24) -> list[list[int]]:
    """Prompts of word ids, of different lengths from 1 on."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    return [[integer(3, vocabulary) for _ in range(integer(1, longest + 1))] for _ in range(count)]
