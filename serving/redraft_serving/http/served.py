"""What the HTTP face knows of the model behind an engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from redraft_serving.http.errors import ModelNotFound


@dataclass(frozen=True)
class ServedModel:
    """The model that clients name. `vocab_size` counts real tokens: ids from there on have no text."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    max_model_len: int
    target_fingerprint: str
    tokenizer_fingerprint: str
    base_draft_fingerprint: str | None
    created: int = field(default_factory=lambda: int(time.time()))

    def check_name(self, asked: str | None) -> None:
        """Raise ModelNotFound where a request names another model. No name is ours."""
        if asked is not None and asked != self.name:
            raise ModelNotFound(asked, self.name)


def public_name(source: str) -> str:
    """What clients call a model that has no other name: a hub id as it is, of a path only its last part."""
    path = Path(source).expanduser()
    return path.resolve().name if path.exists() or path.is_absolute() else source
