"""The two halves of a draft give what the whole gives, and the chunked loss has the whole one's gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from redraft_models.toy import write_toy_pair
from redraft_trainer.data import build_example, collate
from redraft_trainer.forward import Head, Trunk, head_loss
from redraft_trainer.losses import forward_kl
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
)

from .conftest import law_sample, laws, load_model, table_samples


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    target, _ = write_toy_pair(tmp_path_factory.mktemp("random"), "random")
    return load_model(target)


def batch_of(model: PreTrainedModel, sizes: list[int]):  # type: ignore[no-untyped-def]
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    examples = []
    for i, size in enumerate(sizes):
        output = torch.randint(3, vocabulary, (size,), generator=generator).tolist()
        law = torch.softmax(torch.randn(size, vocabulary, generator=generator), -1).double().numpy()
        examples.append(build_example(law_sample(law, [3, 4, 5 + i], output, name=str(i), top_k=8), 64))
    return examples, collate(examples)


def test_halves_equal_the_whole_on_padded_rows(model: PreTrainedModel) -> None:
    """Right padding changes nothing at real positions: each row alone, unpadded, through the model's own
    forward.
    """
    examples, batch = batch_of(model, [9, 2, 5])
    with torch.inference_mode():
        halves = Head(model)(Trunk(model)(batch.input_ids_BT, batch.loss_index_N))
        whole = torch.cat([model(one.input_ids[None]).logits[0, one.loss_start :] for one in examples])
    assert torch.allclose(halves, whole, atol=1e-4)


def test_head_keeps_what_a_family_does_to_its_logits() -> None:
    config = Gemma2Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, final_logit_softcapping=2.0,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    ids = torch.tensor([[3, 4, 5]])
    with torch.inference_mode():
        halves = Head(model)(Trunk(model)(ids, torch.tensor([0, 1, 2])))
        assert torch.allclose(halves, model(ids).logits[0], atol=1e-5)
        assert halves.abs().max() <= 2.0
        trimmed = Head(model, head_ids=torch.tensor([2, 9]))(Trunk(model)(ids, torch.tensor([0, 1, 2])))
        assert torch.allclose(trimmed, halves[:, [2, 9]], atol=1e-5)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_trimmed_head_gives_those_columns_and_leaves_the_model_alone(
    model: PreTrainedModel, dtype: torch.dtype | None
) -> None:
    _, batch = batch_of(model, [9, 2, 5])
    ids = torch.tensor([1, 4, 40], dtype=torch.int32)
    before = model.lm_head.weight
    with torch.inference_mode():
        hidden = Trunk(model)(batch.input_ids_BT, batch.loss_index_N)
        trimmed, full = Head(model, dtype, ids)(hidden), Head(model, dtype)(hidden)
    assert trimmed.shape == (16, 3)
    assert torch.allclose(trimmed, full[:, ids], atol=1e-5 if dtype is None else 0.05)
    assert model.lm_head.weight is before


def test_a_trimmed_head_of_a_model_that_names_its_head_otherwise() -> None:
    config = GPTNeoXConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = GPTNeoXForCausalLM(config).eval()
    ids = torch.tensor([1, 4, 30], dtype=torch.int32)
    hidden = torch.randn(5, 16)
    with torch.inference_mode():
        assert torch.allclose(Head(model, None, ids)(hidden), Head(model)(hidden)[:, ids], atol=1e-6)


def test_head_in_16_bits_leaves_the_model_alone(model: PreTrainedModel) -> None:
    before = model.lm_head.weight
    head = Head(model, torch.bfloat16)
    logits = head(torch.randn(4, model.config.hidden_size))
    assert logits.dtype == torch.bfloat16
    assert model.lm_head.weight is before
    assert before.dtype == torch.float32
    assert model.base_model_prefix in model._modules


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_chunked_loss_has_the_gradient_of_the_mean(model: PreTrainedModel, chunk: int) -> None:
    _, batch = batch_of(model, [7, 4])
    vocabulary = model.config.vocab_size
    head = Head(model)
    with torch.no_grad():
        hidden = Trunk(model)(batch.input_ids_BT, batch.loss_index_N)
    one, two = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    whole = forward_kl(head(one), batch.targets, vocabulary).mean()
    whole.backward()
    surrogate, loss = head_loss(two, head, lambda x, y: forward_kl(x, y, vocabulary), batch.targets, chunk)
    surrogate.backward()
    assert loss.item() == pytest.approx(whole.item(), abs=1e-5)
    assert torch.allclose(one.grad, two.grad, atol=1e-6)  # type: ignore[arg-type]


def test_toy_law_reaches_the_head(learn_pair: tuple[Path, Path]) -> None:
    """The conftest's tables are the model's own law."""
    model = load_model(learn_pair[0])
    rows = laws(model, 67)
    sample = table_samples(rows, 1, 5, first_words=range(3, 67))[0]
    batch = collate([build_example(sample, 32)])
    with torch.inference_mode():
        law = torch.softmax(Head(model)(Trunk(model)(batch.input_ids_BT, batch.loss_index_N)), -1)
    logged = law.gather(-1, batch.targets.topk_ids_NK)
    assert torch.allclose(logged, batch.targets.topk_probs_NK, atol=1e-3)
