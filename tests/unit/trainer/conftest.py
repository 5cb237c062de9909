"""Toy pairs and traffic with a known law, for the trainer's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from redraft_models.laws import GREEDY_EPSILON
from redraft_models.toy import write_toy_pair
from redraft_queue.records import Sample, Sampling, ids_to_bytes
from transformers import AutoModelForCausalLM, PreTrainedModel

MakeSamples = Callable[..., list[Sample]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Toy models are faster on one thread than on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load_model(folder: Path) -> PreTrainedModel:
    """A toy model, ready to be measured."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder).eval().requires_grad_(False)
    return model


def laws(model: PreTrainedModel, vocab_size: int) -> np.ndarray:
    """The next-token table [V, V] of a toy whose law looks at the last token only."""
    with torch.inference_mode():
        logits = model(torch.arange(vocab_size)[:, None]).logits[:, 0, :vocab_size]
    return torch.softmax(logits.double(), dim=-1).numpy()


def table_samples(
    rows: np.ndarray,
    count: int,
    length: int,
    *,
    first_words: Sequence[int],
    seed: int = 0,
    sampling: Sampling | None = None,
    top_k: int = 32,
    eos: int | None = None,
    domain: str = "default",
    fingerprints: tuple[str, str] = ("target", "tokenizer"),
) -> list[Sample]:
    """Answers drawn from a table: `count` different prompts of 4 words, the law logged as serving would log
    it.
    """
    generator = np.random.default_rng(seed)
    return [
        _sample(
            rows,
            f"r{seed}-{i}",
            generator,
            length,
            first_words,
            sampling or Sampling(),
            top_k,
            eos,
            domain,
            fingerprints,
        )
        for i in range(count)
    ]


def _sample(rows, name, generator, length, first_words, sampling, top_k, eos, domain, fingerprints) -> Sample:  # type: ignore[no-untyped-def]
    prompt = [int(word) for word in generator.choice(first_words, size=4)]
    present, output, states = prompt[-1], [], []
    while len(output) < length and (eos is None or present != eos):
        states.append(present)
        present = _draw(rows[present], sampling, generator)
        output.append(present)
    return law_sample(
        rows[states],
        prompt,
        output,
        name=name,
        sampling=sampling,
        top_k=top_k,
        domain=domain,
        fingerprints=fingerprints,
    )


def _draw(law: np.ndarray, sampling: Sampling, generator: np.random.Generator) -> int:
    if sampling.temperature <= GREEDY_EPSILON:
        return int(law.argmax())
    powered = law ** (1.0 / sampling.temperature)
    return int(generator.choice(len(law), p=powered / powered.sum()))


def law_sample(
    law_EV: np.ndarray,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    name: str = "r",
    sampling: Sampling | None = None,
    top_k: int = 32,
    domain: str = "default",
    fingerprints: tuple[str, str] = ("target", "tokenizer"),
) -> Sample:
    """A Sample of given ids whose law at each output position is a row of `law_EV`."""
    k = min(top_k, law_EV.shape[1])
    order = np.argsort(-law_EV, axis=1, kind="stable")[:, :k]
    probabilities = np.take_along_axis(law_EV, order, axis=1)
    with np.errstate(divide="ignore"):
        logprobs = np.log(probabilities).astype("<f2")
    return Sample(
        request_id=name,
        domain=domain,
        created_ms=0,
        target_fingerprint=fingerprints[0],
        tokenizer_fingerprint=fingerprints[1],
        prompt_ids=tuple(prompt),
        output_ids=tuple(output),
        topk_ids=ids_to_bytes(order.flatten().tolist()),
        topk_logprobs=logprobs.tobytes(),
        tail_mass=np.maximum(1.0 - probabilities.sum(axis=1), 0.0).astype("<f2").tobytes(),
        top_k_logged=k,
        sampling=sampling or Sampling(),
    )


@pytest.fixture(scope="session")
def learn_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(target, draft) folders of the pair that LoRA learns in seconds."""
    return write_toy_pair(tmp_path_factory.mktemp("learn"), "learn")


@pytest.fixture(scope="session")
def table_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(target, draft) folders of the table pair: acceptance 0.60 by hand."""
    return write_toy_pair(tmp_path_factory.mktemp("table"), "table")
