"""A forward pass for the Llama-like family without what is not arithmetic.

The same function as the library's modules, which stay its reference: query, key and value are one product,
gate and up another; the residual stream is float32; each pair of rotated dimensions lies side by side, so
that a rotation is one complex product. Legend: B rows, T tokens, n = B*T, V vocabulary or head ids, H heads,
KV key/value heads, G = H/KV, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from redraft_models.dtypes import can_pack
from torch import Tensor
from torch.nn.functional import embedding, pad, scaled_dot_product_attention

from redraft_serving.engine.cache import SlotCache, Step
from redraft_serving.engine.forward.matrix import Matrix, gated, matrix

LEAST_ROWS = 4
"""Packed products of fewer rows take longer than those of four: they are padded."""
LEAST_QUERIES = 4
"""Attention of fewer queries than this sums in another order on CPUs: then a row's logits would depend on how
many rows and tokens share its pass. Padded, they don't, to the last bit."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model of this family."""

    heads: int
    kv_heads: int
    size: int
    """Dimension of a head."""
    scale: float
    epsilon: float

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one decoder layer."""

    norm: Tensor
    qkv: Matrix
    output: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


class LeanDecoder:
    """Reads tokens with a module's weights in their lean form."""

    def __init__(self, module: Any, head_ids: Tensor | None = None, head: Matrix | None = None) -> None:
        """`head` is a ready output head that several weight sets share; else it is made of `head_ids`."""
        self.module, self.head_ids = module, head_ids
        self.device: torch.device = module.device
        self.dtype: torch.dtype = module.dtype
        self.layers: int = module.config.num_hidden_layers
        self.shape = _shape(module)
        self.least_rows = 1
        self._least_products = LEAST_ROWS if can_pack(self.device, self.dtype) else 1
        self._turns = _turns(module)
        self._own_head = head is None
        self.head = matrix(head_weight(module, head_ids)) if head is None else head
        self._embedding = module.model.embed_tokens.weight.detach()
        self._norm = module.model.norm.weight.detach().float()
        self._layers: list[Layer] = []
        self.refresh()

    def refresh(self) -> None:
        """Take over the module's weights as they are now."""
        self._layers = [_layer(layer, self.shape) for layer in self.module.model.layers]

    def logits(self, cache: SlotCache, step: Step, tokens_BT: Tensor, keep: int) -> Tensor:
        """Logits [B, keep, V] of the last `keep` tokens."""
        rows, length = tokens_BT.shape
        x = embedding(tokens_BT.flatten(), self._embedding).float()
        x = pad(x, (0, 0, 0, max(0, self._least_products - len(x))))
        turns = self._turns.index_select(0, step.positions_BT.flatten())[:, None]
        mask = self._mask(step)
        for index, layer in enumerate(self._layers):
            attended = self._attend(cache, step, index, layer, self._normed(x, layer.norm), turns, mask)
            x = layer.output.plus(attended, x)
            hidden = gated(layer.gate_up(self._normed(x, layer.mlp_norm)))
            x = layer.down.plus(hidden, x)
        x = x[: rows * length].view(rows, length, -1)[:, length - keep :].flatten(0, 1)
        last = pad(x, (0, 0, 0, max(0, self._least_products - len(x))))
        return self.head(self._normed(last, self._norm))[: rows * keep].view(rows, keep, -1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root mean square norm, in float32; answered in the model's dtype."""
        mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        scaled = x * mean.add_(self.shape.epsilon).rsqrt_()
        if self.dtype is torch.float32:
            return torch.mul(scaled, weight, out=scaled)
        return torch.mul(scaled, weight, out=torch.empty_like(scaled, dtype=self.dtype))

    def _mask(self, step: Step) -> Tensor:
        """[B, 1, G*T, L], added to the scores: made once for all layers, group by group as queries lie."""
        hidden = ~step.attended()
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill_(hidden, float("-inf")).repeat(1, 1, self.shape.group, 1)
        return pad(mask, (0, 0, 0, max(0, LEAST_QUERIES - mask.shape[2])))

    def _attend(
        self,
        cache: SlotCache,
        step: Step,
        index: int,
        layer: Layer,
        x: Tensor,
        turns: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """[n, H*D] what each token's heads take from the positions up to its own; padded as x is."""
        (rows, length), shape = step.places_BT.shape, self.shape
        kv, group, size = shape.kv_heads, shape.group, shape.size
        states = layer.qkv(x)[: rows * length].view(rows * length, shape.heads + 2 * kv, size)
        turned = _turned(states[:, : shape.heads + kv], turns)
        keys, values = cache.write(index, step, turned[:, shape.heads :], states[:, shape.heads + kv :])
        # Queries of one key/value head lie together as if they were more tokens: nothing is repeated.
        queries = turned[:, : shape.heads].view(rows, length, kv, group, size).permute(0, 2, 3, 1, 4)
        queries = queries.reshape(rows, kv, group * length, size)
        if group * length < mask.shape[2]:
            queries = pad(queries, (0, 0, 0, mask.shape[2] - group * length))
        taken = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=shape.scale)
        taken = taken[:, :, : group * length].view(rows, kv, group, length, size)
        taken = taken.permute(0, 3, 1, 2, 4).reshape(rows * length, -1)
        return pad(taken, (0, 0, 0, len(x) - rows * length)) if len(x) > rows * length else taken

    @property
    def nbytes(self) -> int:
        """Bytes of packed weights."""
        matrices = [self.head] if self._own_head else []
        for layer in self._layers:
            matrices += [layer.qkv, layer.output, layer.gate_up, layer.down]
        return sum(getattr(one, "nbytes", 0) for one in matrices)


def head_weight(module: Any, head_ids: Tensor | None) -> Tensor:
    """Rows [V, I] of the output head; those of `head_ids` alone where they are given."""
    weight: Tensor = module.lm_head.weight.detach()
    return weight if head_ids is None else weight[head_ids.to(weight.device)]


def _shape(module: Any) -> Shape:
    config, attention = module.config, module.model.layers[0].self_attn
    size = attention.head_dim
    heads = attention.q_proj.out_features // size
    kv_heads = attention.k_proj.out_features // size
    return Shape(heads, kv_heads, size, float(attention.scaling), float(config.rms_norm_eps))


def _turns(module: Any) -> Tensor:
    """[max positions + 1, D/2] the rotation of each position and pair of dimensions, as complex numbers."""
    rotary = module.model.rotary_emb
    positions = torch.arange(module.config.max_position_embeddings + 1, device=module.device)
    angles = positions[:, None].float() * rotary.inv_freq.float().to(module.device)[None]
    return torch.polar(torch.full_like(angles, float(rotary.attention_scaling)), angles)


def _turned(states_nHD: Tensor, turns_nP: Tensor) -> Tensor:
    rows, heads, size = states_nHD.shape
    pairs = torch.view_as_complex(states_nHD.float().view(rows, heads, size // 2, 2))
    return torch.view_as_real(pairs * turns_nP).view(rows, heads, size).to(states_nHD.dtype)


def _layer(layer: Any, shape: Shape) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    order = _pairs(shape.size, attention.q_proj.weight.device)
    parts = [(attention.q_proj, order), (attention.k_proj, order), (attention.v_proj, None)]
    qkv = torch.cat([_ordered(linear.weight, shape.size, rows) for linear, rows in parts])
    bias = None
    if attention.q_proj.bias is not None:
        bias = torch.cat([_ordered(linear.bias, shape.size, rows) for linear, rows in parts])
    return Layer(
        norm=layer.input_layernorm.weight.detach().float(),
        qkv=matrix(qkv, bias),
        output=matrix(attention.o_proj.weight, attention.o_proj.bias),
        mlp_norm=layer.post_attention_layernorm.weight.detach().float(),
        gate_up=matrix(torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()])),
        down=matrix(mlp.down_proj.weight),
    )


def _pairs(size: int, device: torch.device) -> Tensor:
    """The library rotates dimension d with d + D/2: this order puts the two side by side."""
    half = torch.arange(size // 2, device=device)
    return torch.stack((half, half + size // 2), dim=1).flatten()


def _ordered(rows: Tensor, size: int, order: Tensor | None) -> Tensor:
    rows = rows.detach()
    if order is None:
        return rows
    return rows.view(-1, size, *rows.shape[1:])[:, order].reshape(rows.shape)
