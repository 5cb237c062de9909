"""Give a draft folder a trimmed head, chosen by the target's own law over its own conversations.

`python -m redraft_ops.healing.trim DRAFT`: the target answers prompts that it invents, and prompts about
functions of the standard library; the ids that it finds likely there, at any position, become the draft's
head. Every fourth pair of answers has no part in the choice: coverage and acceptance are measured on those.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from redraft_models.loading import ModelPair
    from redraft_queue.records import Sample
    from torch import Tensor

CHARACTERS = (150, 500)
"""Shortest and longest function that is asked about."""
FOLD = 4
KIND = (
    "trimmed to the ids that the target's law finds likely, by its mean over the target's own conversations"
)


def trim(
    draft: Annotated[Path, typer.Argument(help="Folder of a draft, as `redraft init-draft` writes it.")],
    size: Annotated[int, typer.Option(min=1, help="Ids that the head keeps.")] = 8192,
    requests: Annotated[int, typer.Option(min=1, help="Prompts that the target invents.")] = 80,
    functions: Annotated[int, typer.Option(min=1, help="Prompts about functions of the library.")] = 40,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 96,
    seed: Annotated[int, typer.Option(help="Seed of prompts and answers.")] = 0,
    samples: Annotated[Path | None, typer.Option(help="Keep the answers here, or take them.")] = None,
) -> None:
    """Trim the head of DRAFT and write how that went into its provenance.json."""
    from redraft_models.draft_folder import set_draft_head
    from redraft_models.head import choose_head_ids
    from redraft_models.loading import load_pair

    from redraft_ops.errors import UsageError
    from redraft_ops.output import emit_json
    from redraft_ops.progress import Phases
    from redraft_ops.settings import load_settings

    settings = load_settings()
    with Phases() as phases:
        pair = load_pair(
            settings.models.model_copy(update={"draft": str(draft.resolve()), "dtype": "float32"}),
            settings.cache_dir,
        )
        found = _conversations(pair, phases, samples, requests, functions, max_tokens, seed)
        seen, unseen = halves(found)
        with phases.phase("the target's law", len(seen)) as bar:
            law = mean_law(pair, seen, bar.advance)
        head = choose_head_ids(dict(enumerate(law.tolist())), pair.vocab_size, size, pair.eos_token_ids)
        if head is None:
            raise UsageError(f"--size {size} saves little of {pair.vocab_size} ids; choose a smaller one")
        with phases.phase("measure", 1) as bar:
            facts = measured(pair, head.ids, unseen)
            bar.advance()
    facts = {
        "ids": len(head),
        "kind": KIND,
        "command": shlex.join(["python", "-m", "redraft_ops.healing.trim", *sys.argv[1:]]),
        "conversations": len(seen),
        **facts,
    }
    set_draft_head(draft, head.ids, facts)
    emit_json(facts)


def _conversations(
    pair: ModelPair, phases: Any, kept: Path | None, requests: int, functions: int, max_tokens: int, seed: int
) -> list[Sample]:
    from redraft_ops.demo.prompts import docstring_prompts
    from redraft_ops.healing.answers import answers, chat_ids, invented_prompts
    from redraft_ops.healing.kept import read_samples, write_samples

    if kept is not None and kept.exists():
        return read_samples(kept, pair.target.fingerprint)
    asked = [chat_ids(pair.tokenizer, one) for one in docstring_prompts(seed, CHARACTERS)[:functions]]
    with phases.phase("the target invents prompts", requests) as bar:
        asked += invented_prompts(pair, requests, seed, bar.advance)
    with phases.phase("the target answers", len(asked)) as bar:
        made = answers(pair, asked, max_tokens, seed, bar.advance)
    if kept is not None:
        write_samples(kept, made)
    return made


def halves(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Those to choose from, and those to measure on: pairs, as greedy and sampled answers alternate."""
    unseen = [sample for i, sample in enumerate(samples) if (i // 2) % FOLD == FOLD - 1]
    return [sample for i, sample in enumerate(samples) if (i // 2) % FOLD != FOLD - 1], unseen


def mean_law(pair: ModelPair, samples: Sequence[Sample], told: Callable[[], None]) -> Tensor:
    """The target's next-token law [V] in float64, averaged over all positions of prompts and answers.

    A mean over laws tells of many more ids than the tokens drawn from them do.
    """
    import torch
    from redraft_models.laws import real_rows

    total_V = torch.zeros(pair.vocab_size, dtype=torch.float64)
    positions = 0
    for sample in samples:
        ids = torch.tensor([sample.prompt_ids + sample.output_ids], device=pair.device)
        with torch.inference_mode():
            logits_TV = real_rows(pair.target.module(ids, use_cache=False).logits[0], pair.vocab_size)
            total_V += torch.softmax(logits_TV.float(), dim=-1).double().sum(dim=0).cpu()
        positions += ids.shape[1]
        told()
    return total_V / max(positions, 1)


def measured(pair: ModelPair, head_ids: Tensor, samples: Sequence[Sample]) -> dict[str, Any]:
    """Coverage of these answers' tokens, and the draft's acceptance on them under both heads."""
    from redraft_trainer.data import build_examples
    from redraft_trainer.heads import heldout_coverage
    from redraft_trainer.measure import report, score

    draft = pair.draft
    assert draft is not None  # trim() names a folder
    examples, _ = build_examples(samples, pair.max_model_len, pair.vocab_size)
    rates = [
        report(examples, score(draft.module, examples, pair.vocab_size, head_ids=ids)).acceptance_rate
        for ids in (None, head_ids)
    ]
    return {
        "measured_on_tokens": sum(example.tokens for example in examples),
        "coverage": _rounded(heldout_coverage(examples, head_ids)),
        "acceptance_full_head": _rounded(rates[0]),
        "acceptance": _rounded(rates[1]),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


if __name__ == "__main__":
    typer.run(trim)
