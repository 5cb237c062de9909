"""Read one model folder with transformers: safetensors and JSON only, no remote code, errors in our words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from redraft_models.errors import SourceError
from redraft_models.quiet import quiet_transformers


def read_config(path: Path, source: str) -> Any:
    """The config in a model folder; `source` names the model in errors. Raises SourceError."""
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise SourceError(f"the config of model {source} can't be read: {first_line(error)}") from error


def read_tokenizer(path: Path, source: str) -> Any:
    """The tokenizer in a model folder. Raises SourceError."""
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise SourceError(f"the tokenizer of model {source} can't be read: {first_line(error)}") from error


def read_model(path: Path, source: str) -> Any:
    """The model, frozen and in eval mode, in the dtype that it is stored in. Raises SourceError."""
    try:
        with quiet_transformers():
            module = AutoModelForCausalLM.from_pretrained(
                path, dtype="auto", use_safetensors=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise SourceError(f"the weights of model {source} can't be read: {first_line(error)}") from error
    return module.requires_grad_(False).eval()


def first_line(error: Exception) -> str:
    """What an error says first: libraries add pages of advice."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
