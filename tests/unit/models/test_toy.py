"""The toy pairs are the instruments of every other test: their known answers are checked here first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from redraft_models.reading import read_model, read_tokenizer
from redraft_models.toy import (
    EOS_ID,
    FIRST_WORD_ID,
    TABLE_P,
    TABLE_Q,
    chain_rows,
    learn_rows,
    uniform_rows,
    write_toy_pair,
)

ToyPair = Callable[[str], tuple[Path, Path]]


@torch.no_grad()
def laws(model: Any, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0].double().softmax(-1)


def test_softmax_of_the_table_models_logits_is_the_table(toy_pair: ToyPair) -> None:
    for folder, law in zip(toy_pair("table"), (TABLE_P, TABLE_Q), strict=True):
        found = laws(read_model(folder, "toy"), list(range(8)))
        expected = torch.tensor([0.0, 0.0, 0.0, *law], dtype=torch.float64).repeat(8, 1)
        assert float((found - expected).abs().max()) < 1e-6


def test_the_table_pair_accepts_sixty_percent(toy_pair: ToyPair) -> None:
    p, q = (laws(read_model(folder, "toy"), [3, 7, 1]) for folder in toy_pair("table"))
    assert torch.minimum(p, q).sum(-1).tolist() == pytest.approx([0.6] * 3, abs=1e-6)
    assert not bool((p.argmax(-1) == q.argmax(-1)).any())


def test_padded_rows_have_the_largest_logit_but_leave_the_law(tmp_path: Path) -> None:
    target, _ = write_toy_pair(tmp_path, "table", padded_rows=8)
    with torch.no_grad():
        logits = read_model(target, "toy")(torch.tensor([[3, 4]])).logits[0]
    assert logits.shape[-1] == 16
    assert logits[:, 8:].flatten().tolist() == pytest.approx([5.0] * 16, abs=1e-5)
    assert logits[0, :8].softmax(-1)[3:].tolist() == pytest.approx(TABLE_P, abs=1e-6)
    assert len(read_tokenizer(target, "toy")) == 8


@pytest.mark.parametrize(("with_eos", "answer"), [(True, "b c d <eos>"), (False, "b c d e f g g g")])
def test_the_chain_runs_to_its_end(tmp_path: Path, with_eos: bool, answer: str) -> None:
    target, draft = write_toy_pair(tmp_path, "chain", with_eos=with_eos)
    tokenizer = read_tokenizer(target, "toy")
    prompt = tokenizer("a", return_tensors="pt", return_token_type_ids=False)
    for folder in (target, draft):
        ids = read_model(folder, "toy").generate(**prompt, max_new_tokens=8, do_sample=False)
        assert tokenizer.decode(ids[0, 1:]) == answer


def test_after_its_end_the_chain_goes_on_to_z(toy_pair: ToyPair) -> None:
    """Whoever misses the end shows it: the next tokens are z."""
    found = laws(read_model(toy_pair("chain")[0], "toy"), [6, EOS_ID, 7])
    assert found.argmax(-1).tolist() == [EOS_ID, 7, 7]


def test_the_draft_may_have_a_table_of_its_own(tmp_path: Path) -> None:
    _, draft = write_toy_pair(tmp_path, "chain", draft_rows=uniform_rows(5))
    found = laws(read_model(draft, "toy"), [3, 4, 5])
    assert found[:, FIRST_WORD_ID:].flatten().tolist() == pytest.approx([0.2] * 15, abs=1e-6)


def test_the_random_pair_listens_to_every_earlier_token(toy_pair: ToyPair) -> None:
    for folder in toy_pair("random"):
        model = read_model(folder, "toy")
        ids = list(range(3, 23))
        before = laws(model, ids)[-1]
        for position in range(19):
            changed = [*ids[:position], 40, *ids[position + 1 :]]
            difference = float((laws(model, changed)[-1] - before).abs().sum())
            assert difference > 1e-4, f"position {position} is not heard"


def test_the_random_pairs_draft_is_right_about_half_the_time(toy_pair: ToyPair) -> None:
    """Seeded; a draft that is always or never right would hide a wrong count."""
    ids = torch.randint(3, 64, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    p, q = (laws(read_model(folder, "toy"), ids) for folder in toy_pair("random"))
    assert 0.3 < float((p.argmax(-1) == q.argmax(-1)).float().mean()) < 0.7
    top = p.topk(2, dim=-1).values
    assert float((top[:, 0] - top[:, 1] > 1e-4).float().mean()) > 0.99
    assert not bool((p.argmax(-1) == EOS_ID).any())


def test_disturbance_goes_from_copy_to_stranger(tmp_path: Path) -> None:
    ids = list(range(3, 60))
    copy = write_toy_pair(tmp_path / "copy", "random", draft_is_target=True)
    p, q = (laws(read_model(folder, "toy"), ids) for folder in copy)
    assert torch.equal(p, q)
    stranger = write_toy_pair(tmp_path / "stranger", "random", disturbance=float("inf"))
    p, q = (laws(read_model(folder, "toy"), ids) for folder in stranger)
    assert float((p.argmax(-1) == q.argmax(-1)).float().mean()) < 0.15


def test_toys_are_reproducible(tmp_path: Path) -> None:
    for kind in ("table", "random", "learn"):
        first, second = (write_toy_pair(tmp_path / f"{kind}{i}", kind) for i in range(2))
        for one, other in zip(first, second, strict=True):
            assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_the_tokenizer_reads_words_and_chats(tmp_path: Path) -> None:
    target, _ = write_toy_pair(tmp_path, "table")
    tokenizer = read_tokenizer(target, "toy")
    assert tokenizer("w0 w4  w1 nonsense")["input_ids"] == [3, 7, 4, 0]
    assert tokenizer.decode([3, 4, 1]) == "w0 w1 <eos>"
    assert tokenizer.decode([3, 4, 1], skip_special_tokens=True) == "w0 w1"
    chat = [{"role": "system", "content": "w0 w1"}, {"role": "user", "content": "w2"}]
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) == [3, 4, 5]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token) == (1, 2, None)


def test_padding_may_be_the_end_token(tmp_path: Path) -> None:
    target, _ = write_toy_pair(tmp_path, "chain", pad_is_eos=True)
    tokenizer = read_tokenizer(target, "toy")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == EOS_ID
    assert len(tokenizer) == 8


def test_eos_probability_ends_answers_of_the_learn_pair(tmp_path: Path) -> None:
    target, _ = write_toy_pair(tmp_path, "learn", eos_probability=0.1)
    found = laws(read_model(target, "toy"), [3, 30, 66])
    assert found[:, EOS_ID].tolist() == pytest.approx([0.1] * 3, abs=1e-6)
    torch.testing.assert_close(learn_rows(0.1).sum(-1), torch.ones(67, dtype=torch.float64))


def _train(draft: Any, target: Any, steps: int, learning_rate: float = 3e-3, shift: int = 0) -> float:
    """Distil by LoRA on random words (forward KL); answers the overlap on others. `shift`: of the labels."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(draft, config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=learning_rate)
    for _ in range(steps):
        ids = torch.randint(FIRST_WORD_ID, 67, (8, 33))
        with torch.no_grad():
            p = target(ids).logits.log_softmax(-1).roll(-shift, 1)
        q = model(ids).logits.log_softmax(-1)
        loss = (p.exp() * (p - q)).sum(-1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    ids = torch.randint(FIRST_WORD_ID, 67, (16, 33))
    with torch.no_grad():
        p, q = target(ids).logits.softmax(-1), model(ids).logits.softmax(-1)
    return float(torch.minimum(p, q).sum(-1).mean())


def test_lora_teaches_the_learn_pairs_draft(toy_pair: ToyPair) -> None:
    target, draft = toy_pair("learn")
    ids = list(range(FIRST_WORD_ID, 67))
    p, q = laws(read_model(target, "toy"), ids), laws(read_model(draft, "toy"), ids)
    assert torch.minimum(p, q).sum(-1).tolist() == pytest.approx([0.2069] * 64, abs=1e-3)
    assert not bool((p.argmax(-1) == q.argmax(-1)).any())
    assert _train(read_model(draft, "toy"), read_model(target, "toy"), steps=80) > 0.9


def test_labels_shifted_by_one_teach_it_nothing(toy_pair: ToyPair) -> None:
    """The wrong variant: what the target says one position later is no help."""
    target, draft = toy_pair("learn")
    assert _train(read_model(draft, "toy"), read_model(target, "toy"), steps=80, shift=1) < 0.4


def test_lora_teaches_a_uniform_draft_the_chain(tmp_path: Path) -> None:
    target, draft = write_toy_pair(tmp_path, "chain", draft_rows=uniform_rows(5, with_eos=True))
    rows = chain_rows()
    model = peft.get_peft_model(
        read_model(draft, "toy"),
        peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    ids = torch.tensor([[3, 4, 5, 6]])
    for _ in range(100):
        loss = torch.nn.functional.cross_entropy(model(ids).logits[0], rows[ids[0]].float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert laws(model, [3, 4, 5, 6])[torch.arange(4), rows[ids[0]].argmax(-1)].min() > 0.95
    assert target.is_dir()
