"""Can this draft serve this target? Each check refuses in one sentence, with both values."""

from __future__ import annotations

from typing import Any

from redraft_models.errors import IncompatiblePair
from redraft_models.fingerprints import special_tokens, tokens_by_id

_WINDOWED = ("sliding_attention", "chunked_attention")


def check_pair(
    target_config: Any, draft_config: Any, target_tokenizer: Any, draft_tokenizer: Any, max_model_len: int
) -> None:
    """Run every check of a pair. Raises IncompatiblePair.

    A draft with a window shorter than `max_model_len` passes: beyond it, rows decode without speculation.
    """
    check_tokenizers(target_tokenizer, draft_tokenizer)
    check_target(target_config, target_tokenizer, max_model_len)
    check_vocabulary("draft", draft_config, vocabulary_size(draft_tokenizer))
    check_rewindable("draft", draft_config, max_model_len)


def check_target(config: Any, tokenizer: Any, max_model_len: int) -> None:
    """The checks that a target alone has to pass. Raises IncompatiblePair."""
    check_vocabulary("target", config, vocabulary_size(tokenizer))
    check_rewindable("target", config, max_model_len)
    check_window(config, max_model_len)


def vocabulary_size(tokenizer: Any) -> int:
    """Largest token id + 1: ids from here on have no text, and probability 0."""
    return 1 + max(int(token_id) for token_id in tokenizer.get_vocab().values())


def check_tokenizers(target: Any, draft: Any) -> None:
    """Same text for every id, same special tokens; otherwise an accepted id would mean two things."""
    target_tokens, draft_tokens = tokens_by_id(target), tokens_by_id(draft)
    for token_id in sorted(target_tokens.keys() | draft_tokens.keys()):
        ours, theirs = target_tokens.get(token_id), draft_tokens.get(token_id)
        if ours != theirs:
            raise IncompatiblePair(
                f"the tokenizers differ at token id {token_id}: {_quoted(ours)} in the target, "
                f"{_quoted(theirs)} in the draft; choose a draft with the target's tokenizer"
            )
    theirs_by_name = special_tokens(draft)
    for name, ours in special_tokens(target).items():
        if ours != theirs_by_name[name]:
            raise IncompatiblePair(
                f"the tokenizers differ in their {name}: {_quoted(ours)} in the target, "
                f"{_quoted(theirs_by_name[name])} in the draft; choose a draft with the same special tokens"
            )


def _quoted(token: str | None) -> str:
    return "nothing" if token is None else repr(token)


def check_vocabulary(role: str, config: Any, vocab_size: int) -> None:
    """The model scores every token of the tokenizer. Further rows are padding, never drawn."""
    if config.vocab_size < vocab_size:
        raise IncompatiblePair(
            f"the {role} model scores {config.vocab_size} tokens but the tokenizer has {vocab_size}; "
            "model and tokenizer do not belong together"
        )


def check_window(target_config: Any, max_model_len: int) -> None:
    """The target was made for as many positions as may be asked of it."""
    window = getattr(target_config, "max_position_embeddings", None)
    if window is not None and window < max_model_len:
        raise IncompatiblePair(
            f"max_model_len is {max_model_len} but the target's window has {window} positions; "
            f"set max_model_len to {window} or less"
        )


def check_rewindable(role: str, config: Any, max_model_len: int) -> None:
    """Rejected tokens leave a cache by shortening it: every layer has to attend over all positions.

    A sliding or chunked window of at least `max_model_len` never slides, so it passes.
    """
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None) or 0
    harmless = {"full_attention", *(_WINDOWED if window >= max_model_len else ())}
    foreign = next((layer for layer in _layer_types(config) if layer not in harmless), None)
    if foreign is not None:
        raise IncompatiblePair(
            f"the {role} ({config.model_type}) has layers of type {foreign!r}, whose cache can't be rewound "
            "after a rejected token; choose a model with 'full_attention' layers only"
        )


def _layer_types(config: Any) -> list[str]:
    """The layer types that a config lists, or those that it implies."""
    if getattr(config, "is_encoder_decoder", False):
        return ["cross_attention"]
    if getattr(config, "layer_types", None):
        return list(config.layer_types)
    if getattr(config, "num_attention_heads", None) is None:
        return ["recurrent"]
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return ["sliding_attention"]
    return ["full_attention"]
