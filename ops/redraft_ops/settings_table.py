"""The table of all settings in README.md: `python -m redraft_ops.settings_table` prints it, a test
compares.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from redraft_ops.commands.config import environment_name
from redraft_ops.settings import Settings

TEXTS = {
    "learning_rate": "Peak learning rate of AdamW, reached after the warm-up, then a cosine.",
    "max_steps": "Optimiser steps at most.",
    "rank": "Rank of the LoRA adapter, on all linear layers.",
    "lora_alpha": "Scale of the adapter is lora_alpha / rank.",
    "lora_dropout": "Dropout of the adapter while it trains.",
    "batch_size": "Sequences per step and process.",
    "loss": (
        "forward_kl, reverse_kl, jsd or total_variation on the logged top-k with its tail; "
        "cross_entropy on the emitted token."
    ),
    "mixed_precision": "no, bf16 or fp16; what was used is recorded as precision_effective.",
    "warmup_fraction": "Share of the steps that the warm-up takes.",
    "max_grad_norm": "Gradients are clipped to this norm.",
    "eval_every": "Steps between two evaluations on the validation prompts.",
    "start_from": "champion continues its adapter, base begins from zero.",
    "num_processes": "Training processes (GPUs) of `accelerate launch`.",
    "seed": "Same samples and seed: same batches, same decision.",
    "min_heldout_requests": "With fewer held-out requests nothing is promoted.",
    "min_heldout_tokens": "With fewer held-out tokens nothing is promoted.",
    "confidence": "Of the one-sided interval of the gain.",
}
"""Where a field's own source has no text."""
HOME = {"data_dir": "~/.local/share/redraft", "cache_dir": "~/.cache/redraft"}


def markdown() -> str:
    """One row per setting: variable, default, what it is."""
    rows = [f"| `{name}` | {default} | {text} |" for name, default, text in _rows(Settings, ())]
    return "\n".join(["| environment variable | default | what it is |", "|---|---|---|", *rows])


def _rows(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    texts = _attribute_docstrings(model)
    for name, info in model.model_fields.items():
        here = (*path, name)
        if inspect.isclass(info.annotation) and issubclass(info.annotation, BaseModel):
            yield from _rows(info.annotation, here)
        else:
            text = info.description or texts.get(name) or TEXTS.get(name, "")
            yield environment_name(here), _default(name, info), " ".join(text.split()).replace("|", "\\|")


def _default(name: str, info: FieldInfo) -> str:
    if name in HOME:
        return f"`{HOME[name]}`"
    value = info.get_default(call_default_factory=False)
    if value is None or value is PydanticUndefined:
        return ""
    return f"`{json.dumps(value)}`" if isinstance(value, (list, tuple, dict)) else f"`{value}`"


def _attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Strings that stand under a field, as the source has them."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    pairs = zip(definition.body, definition.body[1:], strict=False)
    return {
        field.target.id: text.value.value
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


if __name__ == "__main__":
    typer.echo(markdown())
