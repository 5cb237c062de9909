"""From samples to tensors: the split by prompt, what can be learned from, and batches without waste.

An output token at position i is predicted from the prompt and output[:i], so its loss sits at input index
len(prompt) - 1 + i, and the last output token is never an input. Losses are chosen by that index alone,
never by a token's id: a pad id may well be the id of a real token, EOS above all. Padding stands on the
right, where a causal model never looks from a real position: no attention mask is needed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from redraft_queue.records import Sample, Sampling
from torch import Tensor

from redraft_trainer.losses import Targets
from redraft_trainer.split import Part, split, unusable

__all__ = [
    "Batch",
    "Example",
    "Part",
    "build_example",
    "build_examples",
    "collate",
    "limit_tokens",
    "scoring_batches",
    "some_of",
    "split",
    "training_batches",
    "unusable",
]
LAW_SLACK = 0.5
"""How far from 1 the logged probabilities of a position may sum, so that an engine which logs no tail serves
too.
"""
POOL = 32
"""Batches that are sorted by length together; larger wastes less padding, smaller mixes better."""


@dataclass(frozen=True, slots=True)
class Example:
    """One continuation. M positions with a loss; the first one is predicted at input index `loss_start`."""

    request_id: str
    prompt_hash: int
    sampling: Sampling
    input_ids: Tensor
    """int64 [T], T = loss_start + M."""
    loss_start: int
    targets: Targets
    tested: Tensor | None = None
    """bool [M]: positions where a proposal was compared with the target; None where the engine doesn't
    tell.
    """
    accepted: Tensor | None = None
    """bool [M]: positions where the draft's own token was kept."""
    version: int | str | None = None
    """The draft version of all rounds; None where there were several or the engine doesn't tell."""

    @property
    def tokens(self) -> int:
        """Positions with a loss."""
        return len(self.targets)


def build_examples(
    samples: Iterable[Sample], max_length: int, vocab_size: int, most_tokens: int | None = None
) -> tuple[list[Example], Counter[str]]:
    """Examples of the usable samples, and how many were skipped for which reason.

    With `most_tokens` the choice of `limit_tokens` among all of them, of which never many more are held.
    """
    examples: list[Example] = []
    skipped: Counter[str] = Counter()
    tokens, held = 0, most_tokens or 0
    for sample in samples:
        reason = unusable(sample) or _beyond(sample, vocab_size) or _unlawful(sample)
        if reason is not None:
            skipped[reason] += 1
            continue
        examples.append(build_example(sample, max_length))
        tokens += examples[-1].tokens
        if most_tokens is not None and tokens > 2 * held:
            examples = limit_tokens(examples, most_tokens)
            tokens = sum(example.tokens for example in examples)
            held = max(most_tokens, tokens)
    return (examples if most_tokens is None else limit_tokens(examples, most_tokens)), skipped


def some_of(samples: Iterable[Sample], most: int, seed: int) -> list[Sample]:
    """At most `most` samples in their order, each equally likely, with no more than these in memory.

    Vitter, "Random sampling with a reservoir" (1985), algorithm R.
    """
    generator = random.Random(seed)
    kept: list[tuple[int, Sample]] = []
    for index, sample in enumerate(samples):
        if len(kept) < most:
            kept.append((index, sample))
        elif (place := generator.randrange(index + 1)) < most:
            kept[place] = (index, sample)
    return [sample for _, sample in sorted(kept, key=lambda pair: pair[0])]


def build_example(sample: Sample, max_length: int) -> Example:
    """One usable sample as tensors, at most `max_length` input tokens long.

    A long output loses its end. Only where the prompt alone leaves less than half of the room does the
    prompt lose its beginning.
    """
    wanted = min(sample.emitted, max(max_length - len(sample.prompt_ids) + 1, max_length // 2, 1))
    prompt = sample.prompt_ids[-(max_length - wanted + 1) :]
    inputs = torch.tensor(prompt + sample.output_ids[: wanted - 1], dtype=torch.long)
    tested, accepted = _outcomes(sample, wanted)
    return Example(
        request_id=sample.request_id,
        prompt_hash=sample.prompt_hash,
        sampling=sample.sampling,
        input_ids=inputs,
        loss_start=len(prompt) - 1,
        targets=_targets(sample, wanted),
        tested=tested,
        accepted=accepted,
        version=sample.draft_version[0][0] if len(sample.draft_version) == 1 else None,
    )


def _beyond(sample: Sample, vocab_size: int) -> str | None:
    ids = np.frombuffer(sample.topk_ids, dtype="<i4")
    highest = max(max(sample.prompt_ids), max(sample.output_ids), int(ids.max(initial=0)))
    return "outside_vocabulary" if highest >= vocab_size else None


def _unlawful(sample: Sample) -> str | None:
    """A position whose probabilities are far from 1 in all is no law: nothing may be divided by its sum."""
    _, _, total = _law(sample, sample.emitted)
    return None if bool((np.abs(total - 1.0) < LAW_SLACK).all()) else "broken_law"


def _law(sample: Sample, wanted: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities [wanted, k], tail [wanted] and their sum [wanted] at the first positions."""
    logprobs = np.frombuffer(sample.topk_logprobs, dtype="<f2").reshape(sample.emitted, -1)[:wanted]
    tail = np.frombuffer(sample.tail_mass, dtype="<f2")[:wanted].astype(np.float32)
    probs = np.exp(logprobs.astype(np.float32))
    return probs, tail, probs.sum(axis=1) + tail


def _targets(sample: Sample, wanted: int) -> Targets:
    """The first `wanted` positions of the logged law, renormalised: float16 rounding moves the sum by about
    1e-3.
    """
    ids = np.frombuffer(sample.topk_ids, dtype="<i4").reshape(sample.emitted, -1)[:wanted]
    probs, tail, total = _law(sample, wanted)
    return Targets(
        token_N=torch.tensor(sample.output_ids[:wanted], dtype=torch.long),
        topk_ids_NK=torch.from_numpy(ids.astype(np.int64)),
        topk_probs_NK=torch.from_numpy(probs / total[:, None]),
        tail_N=torch.from_numpy(tail / total),
        valid_NK=torch.ones(probs.shape, dtype=torch.bool),
    )


def _outcomes(sample: Sample, wanted: int) -> tuple[Tensor | None, Tensor | None]:
    if not sample.outcome:
        return None, None
    accepted = torch.tensor([name == "accepted" for name in sample.outcome[:wanted]])
    corrected = torch.tensor([name == "corrected" for name in sample.outcome[:wanted]])
    return accepted | corrected, accepted


@dataclass(frozen=True, slots=True)
class Batch:
    """B rows padded to the longest, and the N positions with a loss among all of them."""

    input_ids_BT: Tensor
    loss_index_N: Tensor
    """Indices into the flattened [B * T]."""
    targets: Targets
    row_N: Tensor
    """Which example of the batch a position belongs to."""

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        if device == self.input_ids_BT.device:
            return self
        parts = self.targets
        moved = (parts.token_N, parts.topk_ids_NK, parts.topk_probs_NK, parts.tail_N, parts.valid_NK)
        targets = Targets(*(part.to(device) for part in moved))
        return Batch(
            self.input_ids_BT.to(device), self.loss_index_N.to(device), targets, self.row_N.to(device)
        )


def collate(examples: Sequence[Example]) -> Batch:
    """One batch; the ids used as padding are never looked at."""
    longest = max(len(example.input_ids) for example in examples)
    inputs = torch.zeros(len(examples), longest, dtype=torch.long)
    index: list[Tensor] = []
    for row, example in enumerate(examples):
        inputs[row, : len(example.input_ids)] = example.input_ids
        start = row * longest + example.loss_start
        index.append(torch.arange(start, start + example.tokens))
    rows = torch.repeat_interleave(torch.tensor([example.tokens for example in examples]))
    return Batch(inputs, torch.cat(index), _join([example.targets for example in examples]), rows)


def _join(parts: Sequence[Targets]) -> Targets:
    width = max(part.topk_ids_NK.shape[1] for part in parts)
    widened = [_widen(part, width) for part in parts]
    return Targets(
        torch.cat([part.token_N for part in widened]),
        torch.cat([part.topk_ids_NK for part in widened]),
        torch.cat([part.topk_probs_NK for part in widened]),
        torch.cat([part.tail_N for part in widened]),
        torch.cat([part.valid_NK for part in widened]),
    )


def _widen(part: Targets, width: int) -> Targets:
    positions, present = part.topk_ids_NK.shape
    if present == width:
        return part
    extra = width - present
    return Targets(
        part.token_N,
        torch.cat([part.topk_ids_NK, part.topk_ids_NK[:, :1].expand(-1, extra)], dim=1),
        torch.cat([part.topk_probs_NK, torch.zeros(positions, extra)], dim=1),
        part.tail_N,
        torch.cat([part.valid_NK, torch.zeros(positions, extra, dtype=torch.bool)], dim=1),
    )


def training_batches(examples: Sequence[Example], batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless batches, an epoch after the other: shuffled, grouped by length, shuffled again. Same seed,
    same batches.
    """
    generator = random.Random(seed)
    while True:
        order = list(range(len(examples)))
        generator.shuffle(order)
        groups: list[list[int]] = []
        for start in range(0, len(order), batch_size * POOL):
            pool = sorted(order[start : start + batch_size * POOL], key=lambda i: len(examples[i].input_ids))
            groups += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
        generator.shuffle(groups)
        for group in groups:
            yield collate([examples[i] for i in group])


def scoring_batches(examples: Sequence[Example], token_budget: int) -> Iterator[tuple[list[int], Batch]]:
    """Every example once, with its indices: sorted by length, each batch at most `token_budget` padded
    tokens (one row at least).
    """
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].input_ids))
    group: list[int] = []
    for i in order:
        if group and (len(group) + 1) * len(examples[i].input_ids) > token_budget:
            yield group, collate([examples[j] for j in group])
            group = []
        group.append(i)
    if group:
        yield group, collate([examples[j] for j in group])


def limit_tokens(examples: Sequence[Example], most: int) -> list[Example]:
    """Whole prompts in the order of their hash until `most` tokens are reached: the same choice on every
    machine.
    """
    kept: list[Example] = []
    tokens = 0
    for example in sorted(examples, key=lambda one: (one.prompt_hash, one.request_id)):
        if kept and tokens >= most and example.prompt_hash != kept[-1].prompt_hash:
            break
        kept.append(example)
        tokens += example.tokens
    return kept
