"""The target's own greedy text, by transformers alone: nothing of the serving code takes part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redraft_models.settings import ModelSettings

TIE = 1e-4
"""A position whose two best logits are closer than this may fall either way in float32; such a text proves
nothing.
"""


@dataclass(frozen=True)
class GreedyText:
    """One reference text; `tied` where a near tie makes it unfit for comparison."""

    text: str
    tied: bool


def greedy_texts(
    models: ModelSettings, cache_dir: Path, prompts: Sequence[str], max_tokens: int, chat: bool
) -> list[GreedyText]:
    """Greedy continuations of the target in float32, one prompt at a time. Loads the target for itself."""
    import torch
    from redraft_models.quiet import quiet_transformers
    from redraft_models.sources import resolve_source
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        folder = resolve_source(models.target, cache_dir)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return [_greedy(model, tokenizer, prompt, max_tokens, chat) for prompt in prompts]


def _greedy(model: Any, tokenizer: Any, prompt: str, max_tokens: int, chat: bool) -> GreedyText:
    import torch

    if chat:
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    else:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
    # The mask is explicit: inferred from the pad id it would hide real tokens of a prompt where pad = EOS.
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack([step[0] for step in output.logits]).topk(2, dim=-1).values
    text = tokenizer.decode(output.sequences[0, ids.shape[1] :], skip_special_tokens=True)
    return GreedyText(text, bool(((best[:, 0] - best[:, 1]) < TIE).any()))


def all_equal(served: Sequence[str], references: Sequence[GreedyText]) -> bool:
    """True if every served text is its reference; near ties are left out, and at least one must remain."""
    pairs = [
        (text, reference) for text, reference in zip(served, references, strict=True) if not reference.tied
    ]
    return bool(pairs) and all(text == reference.text for text, reference in pairs)
