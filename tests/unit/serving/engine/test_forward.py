"""The lean pass and the packed library pass against the library's own modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from redraft_serving.engine.cache import SlotCache
from redraft_serving.engine.forward import choose, lean
from redraft_serving.engine.forward.choose import TOLERANCE, choose_decoder, in_family, trial
from redraft_serving.engine.forward.decoder import Decoder, padded_length, read
from redraft_serving.engine.forward.lean import LeanDecoder
from redraft_serving.engine.forward.library import LibraryDecoder
from redraft_serving.engine.forward.matrix import PackedMatrix, PlainMatrix, matrix
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY, WINDOW = 96, 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": WINDOW,
}


def llama(**options: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **options}))


MODELS = {
    "llama": llama,
    "llama, biased": lambda: llama(attention_bias=True),
    "llama, tied": lambda: llama(tie_word_embeddings=True),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
}
FOREIGN = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=3, n_head=6, n_positions=WINDOW)
    ),
    "llama, scaled rope": lambda: llama(
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    ),
    "llama, gelu": lambda: llama(hidden_act="gelu"),
    "llama, mlp bias": lambda: llama(mlp_bias=True),
}


def built(make: Any, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    model = make().to(dtype).eval().requires_grad_(False)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


def ragged(decoder: Decoder, model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of three rows of different length, read in pieces into slots out of order, and the oracle's."""
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in (9, 20, 1)]
    slots = [2, 0, 1]
    cache = SlotCache(decoder.layers, 4, WINDOW - 8, model.device)
    for slot, row in zip(slots, rows, strict=True):
        for start in range(0, len(row) - 1, 6):
            piece = row[start : min(start + 6, len(row) - 1)][None]
            read(decoder, cache, [slot], piece, [start], keep=1)
    more = torch.randint(0, VOCABULARY, (3, 2), generator=generator)
    fed = torch.cat((torch.stack([row[-1] for row in rows])[:, None], more), dim=1)
    counts = [3, 1, 2]
    found = read(decoder, cache, slots, fed, [len(row) - 1 for row in rows], counts)
    wanted = torch.zeros_like(found)
    for b, row in enumerate(rows):
        whole = torch.cat((row, more[b, : counts[b] - 1]))
        wanted[b, : counts[b]] = model(input_ids=whole[None]).logits[0, -counts[b] :]
        found[b, counts[b] :] = 0
    return found, wanted


@pytest.mark.parametrize("name", MODELS)
def test_the_lean_pass_equals_the_library(name: str) -> None:
    model = built(MODELS[name])
    decoder = choose_decoder(model)
    assert isinstance(decoder, LeanDecoder)
    with torch.inference_mode():
        found, wanted = ragged(decoder, model)
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FOREIGN)
def test_others_are_read_by_the_library_packed(name: str) -> None:
    """Their own products are packed too, and padding leaves learned positions alone."""
    model = built(FOREIGN[name])
    reference = built(FOREIGN[name])
    decoder = choose_decoder(model)
    assert isinstance(decoder, LibraryDecoder)
    assert not in_family(model)
    with torch.inference_mode():
        found, wanted = ragged(decoder, reference)
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes_stay_near(dtype: torch.dtype) -> None:
    model = built(MODELS["llama"], dtype)
    assert trial(model, LeanDecoder(model)) < TOLERANCE[dtype]


def test_a_lean_pass_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong variant: dimensions left in the library's order are rotated in wrong pairs."""
    monkeypatch.setattr(lean, "_pairs", lambda size, device: torch.arange(size, device=device))
    assert isinstance(choose_decoder(built(MODELS["llama"])), LibraryDecoder)


def test_a_lean_pass_that_fails_is_not_used() -> None:
    """A familiar class may hold other layers, as some ways to quantize a model leave it."""
    model = built(MODELS["llama"])
    mlp = model.model.layers[1].mlp
    mlp.gate_proj = torch.nn.Sequential(mlp.gate_proj)
    decoder = choose_decoder(model)
    assert isinstance(decoder, LibraryDecoder)
    with torch.inference_mode():
        found, wanted = ragged(decoder, built(MODELS["llama"]))
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


def test_bfloat16_stays_plain_where_the_processor_packs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without AVX-512 or the like packing raises (pytorch#99423)."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    weight = torch.ones(4, 3)
    assert isinstance(matrix(weight.bfloat16()), PlainMatrix)
    assert isinstance(matrix(weight), PackedMatrix)
    decoder = choose_decoder(built(MODELS["llama"], torch.bfloat16))
    assert isinstance(decoder, LeanDecoder)
    assert decoder.nbytes == 0


def test_changed_weights_are_taken_over() -> None:
    for make in (MODELS["llama"], FOREIGN["gpt2"]):
        model, cache_size = built(make), WINDOW
        decoder = choose_decoder(model)
        with torch.no_grad():
            next(p for name, p in model.named_parameters() if "mlp" in name and p.dim() == 2).mul_(3)
        fresh = built(make)
        fresh.load_state_dict(model.state_dict())
        ids = torch.arange(7)[None]
        with torch.inference_mode():
            wanted = fresh(input_ids=ids).logits
            cache = SlotCache(decoder.layers, 1, cache_size, model.device)
            decoder.refresh()
            torch.testing.assert_close(read(decoder, cache, [0], ids, [0]), wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "llama, gelu"])
def test_a_trimmed_head_scores_its_ids_alone(name: str) -> None:
    model = built({**MODELS, **FOREIGN}[name])
    ids = torch.tensor([3, 8, 40, 95])
    decoder, tokens = choose_decoder(model, ids), torch.arange(7)[None]
    cache = SlotCache(decoder.layers, 1, WINDOW, model.device)
    with torch.inference_mode():
        found = read(decoder, cache, [0], tokens, [0], keep=1)
        wanted = built({**MODELS, **FOREIGN}[name])(input_ids=tokens).logits[:, -1:, ids]
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


def test_two_decoders_of_one_head_share_it() -> None:
    target, draft = built(MODELS["llama"]), built(MODELS["llama"])
    draft.lm_head = target.lm_head
    shared = choose_decoder(target)
    assert isinstance(shared, LeanDecoder)
    decoder = choose_decoder(draft, None, shared)
    assert isinstance(decoder, LeanDecoder)
    assert decoder.head is shared.head
    assert decoder.nbytes < shared.nbytes
    assert choose_decoder(built(MODELS["llama"]), None, shared).nbytes == shared.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_products(dtype: torch.dtype, bias: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(24, 16, generator=generator).to(dtype)
    offset = torch.randn(24, generator=generator).to(dtype) if bias else None
    x, other = (torch.randn(5, n, generator=generator) for n in (16, 24))
    packed, plain = PackedMatrix(weight, offset), PlainMatrix(weight, offset)
    close = {"atol": 0.1, "rtol": 0.02} if dtype is torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(packed(x.to(dtype)), plain(x.to(dtype)), **close)
    torch.testing.assert_close(
        packed.plus(x.to(dtype), other.clone()), plain.plus(x.to(dtype), other.clone()), **close
    )


def test_short_batches_are_padded_to_a_cheap_shape() -> None:
    assert [padded_length(1, t, 4) for t in (1, 2, 3, 4, 5)] == [4, 4, 4, 4, 5]
    assert [padded_length(rows, 1, 4) for rows in (1, 2, 3, 4, 8)] == [4, 2, 2, 1, 1]
    assert padded_length(1, 1, 1) == 1


def test_slots_move_clear_and_are_read_back() -> None:
    model = built(MODELS["llama"])
    decoder = choose.choose_decoder(model)
    cache = SlotCache(decoder.layers, 3, WINDOW, model.device)
    tokens = torch.arange(12)[None]
    with torch.inference_mode():
        wanted = read(decoder, cache, [1], tokens, [0])[:, -1]
        cache.move(1, 0, 11)
        assert torch.equal(read(decoder, cache, [0], tokens[:, 11:], [11])[:, -1].argmax(), wanted.argmax())
        block = cache.read_slot(1, 0, 8)
        cache.clear(2)
        cache.write_slot(2, 0, block)
        read(decoder, cache, [2], tokens[:, 8:11], [8], keep=1)
        torch.testing.assert_close(read(decoder, cache, [2], tokens[:, 11:], [11])[:, -1], wanted)
    assert block.numel() * 4 == 8 * cache.slot_bytes // (WINDOW + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_do_not_depend_on_who_shares_a_pass(dtype: torch.dtype) -> None:
    """To the last bit on a CPU with heads of 64, whatever is drafted behind a token, beside any rows."""
    wide = {"hidden_size": 384, "intermediate_size": 512, "max_position_embeddings": WINDOW}
    model = built(lambda: llama(**wide), dtype)
    decoder = choose_decoder(model)
    cache = SlotCache(decoder.layers, 8, WINDOW - 4, model.device)
    ids = torch.arange(44)[None] * 5 % VOCABULARY
    alone: dict[int, torch.Tensor] = {}
    with torch.inference_mode():
        for slot in range(8):
            read(decoder, cache, [slot], ids[:, :20], [0], keep=1)
        for position in range(20, 34):
            for rows, width in ((1, 1), (1, 2), (1, 4), (1, 9), (2, 1), (3, 3), (8, 1), (8, 4)):
                fed = ids[:, position : position + width].expand(rows, width).contiguous()
                logits = read(decoder, cache, list(range(rows)), fed, [position] * rows)
                first = alone.setdefault(position, logits[0, 0].clone())
                assert all(torch.equal(row, first) for row in logits[:, 0])
