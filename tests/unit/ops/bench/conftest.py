"""Toy pairs, loaded, and requests for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_models.loading import ModelPair, load_pair
from redraft_models.settings import ModelSettings
from redraft_ops.bench.answers import Ask

LoadPair = Callable[[str], ModelPair]


@pytest.fixture(scope="session")
def load_toy(
    toy_pair: Callable[[str], tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> LoadPair:
    """`load_toy(kind)`: a toy pair in memory, made once per run."""
    loaded: dict[str, ModelPair] = {}

    def load(kind: str) -> ModelPair:
        if kind not in loaded:
            target, draft = toy_pair(kind)
            models = ModelSettings(target=str(target), draft=str(draft), device="cpu", max_model_len=512)
            loaded[kind] = load_pair(models, tmp_path_factory.mktemp("cache"))
        return loaded[kind]

    return load


@pytest.fixture
def make_asks() -> Callable[..., list[Ask]]:
    """`make_asks(count, max_tokens)`: different prompts of 5 words of the random and the learn pair."""

    def make(count: int, max_tokens: int = 16) -> list[Ask]:
        ids = [tuple(3 + (7 * n + 11 * j + n * j) % 60 for j in range(5)) for n in range(count)]
        return [Ask(index, own, max_tokens) for index, own in enumerate(ids)]

    return make
