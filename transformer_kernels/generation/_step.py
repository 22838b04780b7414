# SPDX-License-Identifier: MIT
"""A Llama on the CPU whose token is one call of C++: its weights are packed once."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from .._library import NAMESPACE, has_kernels
from ..decode.step import StepPlan, StepSession, StepWeight
from ..models import Llama, OffsetLinear, PackedEmbedding
from ..models.llama.packed import weight_rows
from ..nn import QuantizedLinear
from ..ops.linear._kept import KEPT

_PARTS = ("q", "k", "v", "o", "gate", "up", "down")  # in the order of _projections
_GROUPS = (32, 64, 128)
_HALVES = (torch.float16, torch.bfloat16)
# The plan of a model, and what its weights were when it was made.
_plans: weakref.WeakKeyDictionary[Llama, tuple[Any, StepPlan]] = weakref.WeakKeyDictionary()


class StepDecoder:
    """One sequence. Its cache holds 16 bits a number, as llama.cpp's does."""

    is_ahead = False

    def __init__(self, model: Llama, capacity: int) -> None:
        self._session = StepSession(plan_of(model, capacity), positions=capacity)

    @property
    def length(self) -> int:
        return int(self._session.length)

    def extend(self, tokens: Tensor, keep: int = 1) -> Tensor:
        _, logits = self._session.step(tokens[0], outputs=keep, logits=True)
        assert logits is not None
        return logits[None]

    def rewind(self, length: int) -> None:
        self._session.truncate(min(length, self.length))


def runs(model: Any, batch: int) -> bool:
    """Whether the model's token is such a call: weights of 16 bits and fewer, one sequence. Weights
    of float32 keep a cache of float32, and so transformers' tokens."""
    fits = isinstance(model, Llama) and batch == 1 and not model.config.out_bias
    if not (fits and is_built() and model.model.norm.weight.is_cpu):
        return False
    layers = [x for layer in model.model.layers for x in _projections(layer)]
    return all(map(_is_narrow, (*layers, model.lm_head)))


def is_built() -> bool:
    """Whether the native library is there, and none from before this call was part of it."""
    return has_kernels and hasattr(getattr(torch.ops, NAMESPACE), "decode_pages")


def _projections(layer: Any) -> list[nn.Module]:
    inner, mlp = layer.self_attn, layer.mlp
    return [inner.q_proj, inner.k_proj, inner.v_proj, inner.o_proj, mlp.gate_proj, mlp.up_proj,
            mlp.down_proj]  # fmt: skip


def _is_narrow(module: nn.Module) -> bool:
    if isinstance(module, QuantizedLinear):
        return type(module) in (QuantizedLinear, OffsetLinear)
    return type(module) is nn.Linear and module.weight.dtype in _HALVES


def plan_of(model: Llama, capacity: int) -> StepPlan:
    """The plan of a model for so many positions at least, as long as its weights stay."""
    cos, sin = (table.float() for table in model.rotation(capacity))
    tensors = (*model.parameters(), *model.buffers())
    state = (len(cos), KEPT.repacks, *((x.data_ptr(), _version(x)) for x in tensors))
    if model not in _plans or _plans[model][0] != state:
        _plans[model] = state, _new_plan(model, cos, sin)
    return _plans[model][1]


def _version(x: Tensor) -> object:
    """Changes with the tensor. PyTorch does not count the changes of tensors that were made in
    inference mode: each time they are taken to be others."""
    return object() if x.is_inference() else x._version


def _new_plan(model: Llama, cos: Tensor, sin: Tensor) -> StepPlan:
    config = model.config
    plan = StepPlan(
        hidden=config.dim, heads=config.num_heads, kv_heads=config.kv_heads,
        head_dim=config.width, inner=config.inner_dim, vocab=config.vocab_size, cosines=cos,
        sines=sin, eps=config.eps,
    )  # fmt: skip
    for index, layer in enumerate(model.model.layers):
        own = layer.self_attn
        parts: dict[str, Any] = dict(zip(_PARTS, map(_weight, _projections(layer)), strict=True))
        parts |= {name: _numbers(getattr(own, name)) for name in ("q_norm", "k_norm")}
        parts |= _biases(own)
        plan.add_layer(
            attention_norm=_numbers(layer.input_layernorm),
            mlp_norm=_numbers(layer.post_attention_layernorm),
            window=config.window(index)[0] + 1,
            **parts,
        )
    table, head = model.model.embed_tokens, model.lm_head
    tied = getattr(table, "layer", table) is head or (
        isinstance(table, nn.Embedding) and getattr(head, "weight", None) is table.weight
    )
    plan.finish(
        embedding=_weight(table.layer if isinstance(table, PackedEmbedding) else table),
        final_norm=_numbers(model.model.norm), head=None if tied else _weight(head),
    )  # fmt: skip
    return plan


def _numbers(norm: Any) -> Any:
    return None if norm is None else norm.weight.detach()


def _biases(own: Any) -> dict[str, Tensor | None]:
    found = {name: getattr(own, f"{name}_proj").bias for name in ("q", "k", "v")}
    return {f"{name}_bias": None if x is None else x.detach() for name, x in found.items()}


def _weight(module: Any) -> StepWeight | Tensor:
    """The weight as it is stored, where the call reads it so; otherwise widened."""
    if not isinstance(module, QuantizedLinear):
        return module.weight.detach()
    group, halves = module.in_features // module.scales.shape[1], module.scales.half()
    if group not in _GROUPS or not torch.equal(halves.float(), module.scales.float()):
        return weight_rows(module)
    if not isinstance(module, OffsetLinear):
        return StepWeight(module.packed, halves)
    minimums = module.offsets - 8 * module.scales.float()  # of numbers from 0 to 15
    return StepWeight(module.packed ^ 0x88, halves, minimums.half())
