# SPDX-License-Identifier: MIT
"""nn.AttentionBlock and nn.FusedGPT2Block: the ops that they run, and what keeps them from it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transformer_kernels as tfk
from transformer_kernels.testing.inputs import randn

CHANNELS, HEADS = 32, 4


def _x(dtype: torch.dtype = torch.float32) -> Tensor:
    return randn((2, 7, CHANNELS), dtype)


def _nodes(results: Any) -> set[str]:
    """The names of all nodes behind the results."""
    found: set[str] = set()
    left = [y.grad_fn for y in (results if isinstance(results, tuple) else (results,))]
    while left:
        node = left.pop()
        if node is not None:
            found.add(node.name())
            left += [before for before, _ in node.next_functions]
    return found


def _is_one(results: Any) -> bool:
    return any("AttentionBlock" in name for name in _nodes(results))


def _perturbed(module: nn.Module) -> nn.Module:
    """The module with parameters that are not 0 and 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return module


MODULES: dict[str, Any] = {
    "layer_norm": lambda: tfk.nn.AttentionBlock(CHANNELS, HEADS, causal=True, norm="layer_norm"),
    "rms_norm": lambda: tfk.nn.AttentionBlock(CHANNELS, HEADS, num_kv_heads=2, norm="rms_norm"),
    "gpt2": lambda: tfk.nn.FusedGPT2Block(CHANNELS, HEADS),
}
each_module = pytest.mark.parametrize("kind", MODULES)


def _call(module: nn.Module, x: Tensor, residual: Tensor) -> Any:
    return module(x) if isinstance(module, tfk.nn.FusedGPT2Block) else module(x, residual)


def _first(module: Any) -> tuple[nn.Module, str]:
    """The parent and the name of the first projection."""
    return (module.attn, "c_attn") if hasattr(module, "attn") else (module, "qkv")


class _Adapter(nn.Module):
    """Adds a product of low rank, as LoRA does."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


@each_module
def test_layers_that_something_was_done_to_are_called(kind: str) -> None:
    """A hook on a layer, or an adapter in its place, sees the call; results are the same."""
    module, x, residual = _perturbed(MODULES[kind]()), _x(), _x()
    fused = _call(module, x, residual)
    assert _is_one(fused)
    parent, name = _first(module)
    layer, seen = getattr(parent, name), []
    hook = layer.register_forward_hook(lambda *_: seen.append(1))
    hooked = _call(module, x, residual)
    assert seen
    assert not _is_one(hooked)
    torch.testing.assert_close(hooked, fused)
    hook.remove()
    setattr(parent, name, _Adapter(layer))
    adapted = _call(module, x, residual)
    assert not _is_one(adapted)
    torch.testing.assert_close(adapted, fused)


@each_module
def test_copies_compute_the_same(kind: str) -> None:
    module, x, residual = _perturbed(MODULES[kind]()), _x(), _x()
    other = MODULES[kind]()
    other.load_state_dict(module.state_dict())
    for twin in (copy.deepcopy(module), other):
        torch.testing.assert_close(_call(twin, x, residual), _call(module, x, residual))


@each_module
def test_dropout_in_training_alone(kind: str) -> None:
    module, x, residual = MODULES[kind](), _x(), _x()
    expected = _call(module.eval(), x, residual)
    module.dropout = module.attention_dropout = 0.5
    torch.testing.assert_close(_call(module, x, residual), expected)
    torch.manual_seed(1)
    first = _call(module.train(), x, residual)
    torch.manual_seed(1)
    torch.testing.assert_close(_call(module, x, residual), first)
    second = _call(module, x, residual)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(second, first)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tfk.nn.AttentionBlock(30, 4), r"AttentionBlock: embed_dim is 30, .* \(4\)"),
        (lambda: tfk.nn.AttentionBlock(32, 4, num_kv_heads=3), "AttentionBlock: num_heads is 4"),
        (lambda: tfk.nn.AttentionBlock(32, 4, norm="none"), "AttentionBlock: norm is 'none'"),
        (lambda: tfk.nn.FusedGPT2Block(30, 4), "FusedGPT2Block: embed_dim is 30"),
        (lambda: tfk.nn.FusedGPT2Block(32, 4, activation="tan"), "FusedGPT2Block: activation is"),
        (lambda: tfk.nn.FusedGPT2Block.from_hf(nn.Linear(1, 1)),
         "FusedGPT2Block.from_hf: block is Linear, expected a GPT2Block"),
    ],
)  # fmt: skip
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        make()
