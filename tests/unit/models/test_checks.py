"""Pairs that can't serve are refused in one sentence that names both values."""

from __future__ import annotations

from typing import Any

import pytest
from redraft_models.checks import check_pair, vocabulary_size
from redraft_models.errors import IncompatiblePair
from redraft_models.toy_tokenizer import build_tokenizer
from transformers import AutoConfig, LlamaConfig

WORDS = ("red", "green", "blue", "white", "black")


def config(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{"vocab_size": 8, "max_position_embeddings": 64, "num_hidden_layers": 2, **changes})


def objection(**changes: Any) -> str | None:
    """What check_pair has against a fitting pair with these changes; None where it lets it pass."""
    arguments = {
        "target_config": config(),
        "draft_config": config(),
        "target_tokenizer": build_tokenizer(WORDS),
        "draft_tokenizer": build_tokenizer(WORDS),
        "max_model_len": 64,
    }
    try:
        check_pair(**{**arguments, **changes})
    except IncompatiblePair as error:
        return str(error)
    return None


def refusal(**changes: Any) -> str:
    """What check_pair says when one thing is not as it should be."""
    sentence = objection(**changes)
    assert sentence is not None, "the pair was let pass"
    assert "\n" not in sentence
    return sentence


def test_a_fitting_pair_passes() -> None:
    assert objection(draft_tokenizer=build_tokenizer(WORDS, pad_is_eos=True)) is None
    assert vocabulary_size(build_tokenizer(WORDS)) == 8


def test_padded_vocabularies_pass_even_of_different_size() -> None:
    assert objection(target_config=config(vocab_size=16), draft_config=config(vocab_size=12)) is None


def test_an_end_token_on_another_id() -> None:
    """<eos> and <pad> trade ids 1 and 2: the names still agree, the ids don't."""
    moved = build_tokenizer(WORDS)
    moved = _swapped(moved, "<eos>", "<pad>")
    assert "differ at token id 1: '<eos>' in the target, '<pad>' in the draft" in refusal(
        draft_tokenizer=moved
    )


def test_two_words_swapped() -> None:
    swapped = build_tokenizer(("red", "blue", "green", "white", "black"))
    message = refusal(draft_tokenizer=swapped)
    assert "differ at token id 4: 'green' in the target, 'blue' in the draft" in message


def test_a_token_more_or_less() -> None:
    assert "id 8: nothing in the target, 'grey' in the draft" in refusal(
        draft_tokenizer=build_tokenizer((*WORDS, "grey")), draft_config=config(vocab_size=9)
    )
    assert "id 7: 'black' in the target, nothing in the draft" in refusal(
        draft_tokenizer=build_tokenizer(WORDS[:-1])
    )


def test_another_end_token_among_the_same_ids() -> None:
    other = build_tokenizer(WORDS)
    other.eos_token = "<pad>"
    assert "differ in their eos_token: '<eos>' in the target, '<pad>' in the draft" in refusal(
        draft_tokenizer=other
    )
    beginning = build_tokenizer(WORDS)
    beginning.bos_token = "<pad>"
    assert "bos_token: nothing in the target, '<pad>'" in refusal(draft_tokenizer=beginning)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_that_scores_fewer_tokens_than_there_are(role: str) -> None:
    message = refusal(**{f"{role}_config": config(vocab_size=7)})
    assert message.startswith(f"the {role} model scores 7 tokens but the tokenizer has 8")


def test_a_window_that_is_too_small() -> None:
    message = refusal(max_model_len=65)
    assert "max_model_len is 65 but the target's window has 64 positions" in message


def test_a_draft_with_a_smaller_window_passes() -> None:
    assert objection(draft_config=config(max_position_embeddings=16)) is None


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    ("changes", "layer_type"),
    [
        ({"sliding_window": 16}, "sliding_attention"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}, "sliding_attention"),
        (
            {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 8},
            "chunked_attention",
        ),
        ({"is_encoder_decoder": True}, "cross_attention"),
    ],
)
def test_layers_that_cannot_rewind(role: str, changes: dict[str, Any], layer_type: str) -> None:
    message = refusal(**{f"{role}_config": config(**changes)})
    assert f"the {role} (llama) has layers of type '{layer_type}'" in message


def test_a_window_that_never_slides_passes() -> None:
    slides_late = {"target_config": config(sliding_window=64), "draft_config": config(sliding_window=4096)}
    assert objection(**slides_late) is None


@pytest.mark.parametrize("model_type", ["mamba", "qwen3_next", "gemma3_text", "rwkv", "recurrent_gemma"])
def test_architectures_of_the_field_that_cannot_rewind(model_type: str) -> None:
    foreign = AutoConfig.for_model(model_type, vocab_size=8, sliding_window=16)
    assert "can't be rewound" in refusal(draft_config=foreign, max_model_len=32)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "olmo2", "phi3"])
def test_architectures_of_the_field_that_can(model_type: str) -> None:
    foreign = AutoConfig.for_model(model_type, vocab_size=8, pad_token_id=None)
    assert objection(draft_config=foreign) is None


def _swapped(tokenizer: Any, one: str, other: str) -> Any:
    """The tokenizer with two tokens' ids exchanged."""
    import json

    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    content = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    for added in content["added_tokens"]:
        added["id"] = vocabulary[added["content"]]
    content["added_tokens"].sort(key=lambda added: added["id"])
    backend = Tokenizer.from_str(json.dumps(content))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
