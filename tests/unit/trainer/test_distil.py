"""Trainings of seconds on toy drafts: what they learn, that they repeat, and how they fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from redraft_models.adapter import ServingWeights, read_adapter, save_adapter
from redraft_models.toy import write_toy_pair
from redraft_queue.records import Sample
from redraft_trainer import data
from redraft_trainer.data import Example, build_examples
from redraft_trainer.distil import Distilled, distil
from redraft_trainer.errors import Diverged, NoUsableSamples
from redraft_trainer.measure import measure
from redraft_trainer.preparation import effective_precision, learning_rate
from redraft_trainer.settings import TrainerSettings
from transformers import PreTrainedModel

from .conftest import laws, load_model, table_samples

V = 67
WORDS = range(3, V)
QUICK = TrainerSettings(learning_rate=3e-3, max_steps=40, rank=16, lora_alpha=32, eval_every=10)


@pytest.fixture(scope="module")
def traffic(learn_pair: tuple[Path, Path]) -> list[Sample]:
    return table_samples(laws(load_model(learn_pair[0]), V), 160, 30, first_words=WORDS)


@pytest.fixture(scope="module")
def examples(traffic: list[Sample]) -> list[Example]:
    return build_examples(traffic, 64, V)[0]


def train(
    draft: PreTrainedModel, examples: Sequence[Example], settings: TrainerSettings = QUICK, **kwargs: Any
) -> Distilled:
    return distil(draft, examples[40:], examples[:20], settings, vocab_size=V, **kwargs)


def test_a_draft_learns_its_target(
    learn_pair: tuple[Path, Path], examples: list[Example], traffic: list[Sample]
) -> None:
    draft = load_model(learn_pair[1])
    before = measure(draft, traffic[20:40], V).acceptance_rate
    events: list[dict[str, Any]] = []
    result = train(draft, examples, progress=events.append)
    after = measure(draft, traffic[20:40], V).acceptance_rate
    assert before is not None
    assert before < 0.3
    assert after is not None
    assert after > 0.9
    assert [event["stage"] for event in events].count("train") == len(result.steps) == 40
    assert result.validation[0] == (0, pytest.approx(before, abs=0.02))
    assert result.validation[-1][1] == pytest.approx(after, abs=0.02)
    assert result.best_step in {step for step, _ in result.validation}


@pytest.mark.parametrize("loss", ["forward_kl", "cross_entropy"])
def test_a_draft_learns_on_the_ids_of_its_head(
    learn_pair: tuple[Path, Path], examples: list[Example], traffic: list[Sample], loss: str
) -> None:
    """Each class's four likeliest words hold 15/16 of the law: what is left of 1 is lost, not unlearned."""
    rows = torch.tensor(laws(load_model(learn_pair[0]), V))
    ids = torch.cat([torch.tensor([1]), (rows.sum(0).argsort(descending=True)[:32]).sort().values]).unique()
    inside = float(rows[3:, ids].sum(-1).mean())
    draft = load_model(learn_pair[1])
    head_ids = ids.to(torch.int32)
    before = measure(draft, traffic[20:40], V, head_ids=head_ids).acceptance_rate or 0.0
    result = train(draft, examples, QUICK.model_copy(update={"loss": loss}), head_ids=head_ids)
    after = measure(draft, traffic[20:40], V, head_ids=head_ids).acceptance_rate or 0.0
    assert result.validation[-1][1] == pytest.approx(after, abs=0.02)
    assert before < 0.4
    assert 0.85 < after <= inside + 0.01
    assert result.trained_tokens < 40 * 8 * 30, "positions outside of the head are not trained on"


def test_the_same_input_gives_the_same_adapter(
    learn_pair: tuple[Path, Path], examples: list[Example]
) -> None:
    short = QUICK.model_copy(update={"max_steps": 5, "lora_dropout": 0.1})
    torch.manual_seed(1)
    first = train(load_model(learn_pair[1]), examples, short)
    torch.manual_seed(2)
    second = train(load_model(learn_pair[1]), examples, short)
    assert first.steps == second.steps
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    )


def test_the_base_stays_pristine_and_the_adapter_stands_for_the_training(
    learn_pair: tuple[Path, Path], examples: list[Example], traffic: list[Sample], tmp_path: Path
) -> None:
    draft = load_model(learn_pair[1])
    pristine = {name: weight.clone() for name, weight in draft.state_dict().items()}
    result = train(draft, examples)
    trained = measure(draft, traffic[:20], V).acceptance_rate
    save_adapter(result.model, tmp_path / "a", {"base_draft_fingerprint": "base"})
    result.model.unload()
    assert all(torch.equal(weight, pristine[name]) for name, weight in draft.state_dict().items())
    weights = ServingWeights(draft)
    adapter = read_adapter(tmp_path / "a", draft, "base")
    weights.apply(adapter)
    assert measure(draft, traffic[:20], V).acceptance_rate == pytest.approx(trained, abs=1e-4)
    # A next training goes on from there, relative to the pristine base.
    weights.apply(None)
    further = train(draft, examples, QUICK.model_copy(update={"max_steps": 10}), start=adapter)
    assert further.validation[0][1] == pytest.approx(trained, abs=0.02)


def test_labels_that_are_off_by_one_teach_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain is learned from a uniform draft; the wrong variant, laws one position late, is not."""
    uniform = np.full((11, 11), 1 / 11)
    _, draft = write_toy_pair(tmp_path, "chain", with_eos=False, draft_rows=torch.tensor(uniform))
    vocabulary = 11
    rows = np.eye(vocabulary)[[*([10] * 3), 4, 5, 6, 7, 8, 9, 3, 10]]
    logs = table_samples(rows, 60, 12, first_words=range(3, 10))
    settings = QUICK.model_copy(update={"max_steps": 60})

    def acceptance() -> float:
        module = load_model(draft)
        found, _ = build_examples(logs, 64, vocabulary)
        distil(module, found[20:], found[:10], settings, vocab_size=vocabulary)
        monkeypatch.undo()
        return measure(module, logs[10:20], vocabulary).acceptance_rate or 0.0

    assert acceptance() >= 0.95
    right = data._targets

    def late(sample: Sample, wanted: int) -> Any:
        targets = right(sample, wanted)
        parts = (
            targets.token_N,
            targets.topk_ids_NK,
            targets.topk_probs_NK,
            targets.tail_N,
            targets.valid_NK,
        )
        return type(targets)(*(part.roll(1, dims=0) for part in parts))

    monkeypatch.setattr(data, "_targets", late)
    assert acceptance() < 0.4


def test_the_end_is_learned_where_pad_is_eos(tmp_path: Path) -> None:
    """200 answers a b c d <eos>, a draft that gives <eos> 1 % there, and a tokenizer that pads with
    <eos>.
    """
    eos, vocabulary = 1, 8
    rows = np.eye(vocabulary)[[7, 7, 7, 4, 5, 6, eos, 7]]
    soft = np.full((vocabulary, vocabulary), 0.01)
    soft[:, 3:] = (1 - 0.03) / 5
    _, draft = write_toy_pair(tmp_path, "chain", pad_is_eos=True, draft_rows=torch.tensor(soft))
    logs = table_samples(rows, 200, 10, first_words=[3, 4, 5, 6], eos=eos)
    logs = [replace(one, request_id=f"{i}") for i, one in enumerate(logs)]
    module = load_model(draft)

    def end() -> float:
        with torch.inference_mode():
            return float(
                torch.softmax(module(torch.tensor([[3, 4, 5, 6]])).logits[0, -1, :vocabulary], -1)[eos]
            )

    assert end() == pytest.approx(0.01, abs=1e-3)
    found, _ = build_examples(logs, 64, vocabulary)
    distil(module, found[20:], found[:20], QUICK.model_copy(update={"max_steps": 60}), vocab_size=vocabulary)
    assert end() >= 0.9


def test_a_mad_learning_rate_fails(learn_pair: tuple[Path, Path], examples: list[Example]) -> None:
    with pytest.raises(Diverged, match="learning_rate"):
        train(load_model(learn_pair[1]), examples, QUICK.model_copy(update={"learning_rate": 1e9}))


def test_nothing_to_train_on_fails(learn_pair: tuple[Path, Path]) -> None:
    with pytest.raises(NoUsableSamples):
        distil(load_model(learn_pair[1]), [], [], QUICK, vocab_size=V)


def test_training_stops_when_nothing_gets_better(
    learn_pair: tuple[Path, Path], examples: list[Example]
) -> None:
    slow = QUICK.model_copy(update={"learning_rate": 1e-12, "eval_every": 2, "patience": 3})
    result = train(load_model(learn_pair[1]), examples, slow)
    assert len(result.steps) <= 10
    assert result.validation[-1][0] == len(result.steps)


@pytest.mark.parametrize("loss", ["reverse_kl", "jsd", "total_variation", "cross_entropy"])
def test_every_loss_teaches(loss: str, learn_pair: tuple[Path, Path], examples: list[Example]) -> None:
    result = train(load_model(learn_pair[1]), examples, QUICK.model_copy(update={"loss": loss}))
    assert max(acceptance for _, acceptance in result.validation) > 0.6


def test_precision_on_a_cpu() -> None:
    assert [effective_precision(wanted, True) for wanted in ("no", "bf16", "fp16")] == ["no", "bf16", "no"]
    assert effective_precision("fp16", False) == "fp16"


def test_learning_rate_rises_and_falls() -> None:
    settings = TrainerSettings(learning_rate=1.0, max_steps=100, warmup_fraction=0.1)
    rates = [learning_rate(step, settings) for step in range(1, 101)]
    assert rates[:2] == pytest.approx([0.1, 0.2])
    assert max(rates) == rates[9] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.05)
