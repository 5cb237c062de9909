"""The prompts of a run: from a file, from a domain's stream, or functions of the standard library."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft_ops.bench.answers import Ask
from redraft_ops.bench.plan import BenchPlan
from redraft_ops.errors import UsageError

if TYPE_CHECKING:
    from redraft_queue.stream import SampleStream

DEFAULT_CHARACTERS = (120, 700)
"""Shortest and longest source of a function that the built-in prompts ask about."""


@dataclass(frozen=True)
class Prompt:
    """One prompt, as ids of the target's tokenizer."""

    ids: tuple[int, ...]
    text: str | None = None
    domain: str | None = None
    max_tokens: int | None = None
    """Length of the answer that traffic had; None: as the plan says."""


def file_prompts(path: Path, tokenizer: Any) -> list[Prompt]:
    """All prompts of a JSONL file with `prompt` and optionally `domain` per line. Raises UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path} can't be read ({error})") from error
    return [_line(path, number, line, tokenizer) for number, line in enumerate(lines, 1) if line.strip()]


def _line(path: Path, number: int, line: str, tokenizer: Any) -> Prompt:
    from redraft_queue.keys import check_name

    from redraft_ops.healing.answers import chat_ids

    try:
        value = json.loads(line)
        text, domain = value["prompt"], value.get("domain")
        if not isinstance(text, str) or not text:
            raise ValueError("prompt is no text")
        if domain is not None:
            check_name(domain)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--prompts {path}, line {number}: not a JSON object with a prompt ({error})"
        ) from error
    return Prompt(chat_ids(tokenizer, text), text, domain)


def default_prompts(tokenizer: Any, count: int, seed: int) -> list[Prompt]:
    """`count` prompts that every machine has, fewer where the library holds fewer."""
    from redraft_ops.demo.prompts import docstring_prompts
    from redraft_ops.healing.answers import chat_ids

    texts = docstring_prompts(seed, DEFAULT_CHARACTERS)[:count]
    return [Prompt(chat_ids(tokenizer, text), text) for text in texts]


def replayed_prompts(
    stream: SampleStream, domain: str, tokenizer_fingerprint: str, count: int
) -> list[Prompt]:
    """Prompts and answer lengths of a domain's newest samples, oldest of them first."""
    newest: deque[Prompt] = deque(maxlen=count)
    seen: set[tuple[int, ...]] = set()
    for _, sample in stream.read(domain, None, None):
        if sample.tokenizer_fingerprint == tokenizer_fingerprint and sample.prompt_ids not in seen:
            seen.add(sample.prompt_ids)
            newest.append(Prompt(sample.prompt_ids, None, domain, max(1, sample.emitted)))
    return list(newest)


@dataclass(frozen=True)
class PromptSets:
    """Requests by number of clients, and some more to warm up with. Within one list no prompt is repeated."""

    by_clients: dict[int, list[Ask]]
    warm_up: list[Ask]


def prompt_sets(
    found: Iterable[Prompt], plan: BenchPlan, domain: str | None = None, replay: bool = False
) -> PromptSets:
    """Hand each prompt out once per configuration.

    With enough prompts, each number of clients has its own; with fewer, all have the same ones (a
    configuration is a name with a number of clients). `domain` is that of prompts that name none. Raises
    UsageError where there are fewer than `requests`.
    """
    unique = list({prompt.ids: prompt for prompt in found}.values())
    needed, levels = plan.requests, len(plan.clients)
    if len(unique) < needed:
        raise UsageError(
            f"there are {len(unique)} different prompts and {needed} requests; each prompt is used once, so "
            "give more prompts or fewer --requests"
        )
    apart = len(unique) >= needed * levels
    asks = [_ask(prompt, index, plan, domain, replay) for index, prompt in enumerate(unique)]
    by_clients = {
        clients: asks[level * needed : (level + 1) * needed] if apart else asks[:needed]
        for level, clients in enumerate(plan.clients)
    }
    spare = asks[needed * levels if apart else needed :]
    return PromptSets(by_clients, _warm_up(spare, asks, plan))


def _ask(prompt: Prompt, index: int, plan: BenchPlan, domain: str | None, replay: bool) -> Ask:
    return Ask(
        index=index,
        ids=prompt.ids,
        max_tokens=(prompt.max_tokens if replay else None) or plan.max_tokens,
        text=prompt.text,
        domain=prompt.domain or domain,
        ignore_eos=replay or plan.ignore_eos,
        temperature=plan.temperature,
        seed=plan.seed + index,
    )


def _warm_up(spare: Sequence[Ask], asks: Sequence[Ask], plan: BenchPlan) -> list[Ask]:
    """Requests that are not counted: prompts left over, else the first ones with their ids turned round."""
    wanted = plan.warm
    turned = [
        replace(ask, ids=ask.ids[::-1], text=ask.text[::-1] if ask.text else None) for ask in asks[:wanted]
    ]
    # Indices of their own: an answer must not be taken for that of a counted request.
    return [replace(ask, index=-1 - number) for number, ask in enumerate([*spare, *turned][:wanted])]


def check_lengths(sets: PromptSets, max_model_len: int) -> None:
    """Raises UsageError for a request that does not fit into the model's window."""
    for ask in (ask for asks in sets.by_clients.values() for ask in asks):
        if len(ask.ids) + ask.max_tokens > max_model_len:
            raise UsageError(
                f"prompt {ask.index} has {len(ask.ids)} tokens; with {ask.max_tokens} of answer that is more "
                f"than max_model_len ({max_model_len}); give shorter prompts, fewer --max-tokens or a larger "
                "window"
            )
