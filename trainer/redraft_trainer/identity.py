"""Which target and tokenizer a sample must come from, known without loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from redraft_models.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class Identity:
    """Fingerprints of the target's weights and of its tokenizer."""

    target: str
    tokenizer: str


def identify(models: ModelSettings, cache_dir: Path) -> Identity:
    """The identity of the settings' target. Raises SourceError. Hashing takes seconds, so it is done once
    per process.
    """
    return _identify(models.target, cache_dir)


@lru_cache(maxsize=8)
def _identify(target: str, cache_dir: Path) -> Identity:
    from redraft_models.fingerprints import tokenizer_fingerprint, weights_fingerprint
    from redraft_models.reading import read_tokenizer
    from redraft_models.sources import resolve_source

    path = resolve_source(target, cache_dir)
    return Identity(weights_fingerprint(path), tokenizer_fingerprint(read_tokenizer(path, target)))
