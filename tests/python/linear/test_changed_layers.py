# SPDX-License-Identifier: MIT
"""MLPs and a loss whose layers were replaced, hooked into, pruned or quantised: the modules run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as of_all

import transformer_kernels as tfk
from transformer_kernels.testing.modules import CHANGES, quantize, results

CLOSE = {"rtol": 1e-6, "atol": 1e-9}
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).double()
Y = torch.tensor([0, 3, 5, 2, 3])


def loss_of_mlp(m: nn.Module, x: Tensor) -> Tensor:
    return m(x, x).square().sum()


def layers_of_mlp(m: nn.Module, x: Tensor) -> Tensor:
    return (m.fc2(m.fc1(x)) + x).square().sum()


def layers_of_gates(m: nn.Module, x: Tensor) -> Tensor:
    return (m.down_proj(F.silu(m.gate_proj(x)) * m.up_proj(x)) + x).square().sum()


def loss_of_linear(m: nn.Module, x: Tensor) -> Tensor:
    return m(x, Y)


def layers_of_loss(m: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(m.linear(x), Y, label_smoothing=0.1, ignore_index=2)


def new_loss() -> nn.Module:
    return tfk.nn.LinearCrossEntropyLoss(8, 6, bias=True, label_smoothing=0.1, ignore_index=2)


Run = Callable[[nn.Module, Tensor], Tensor]
MODULES: dict[str, tuple[Callable[[], nn.Module], Run, Run]] = {
    "MLP": (lambda: tfk.nn.MLP(8, 12), loss_of_mlp, layers_of_mlp),
    "GatedMLP": (lambda: tfk.nn.GatedMLP(8, 12, bias=True), loss_of_mlp, layers_of_gates),
    "LinearCrossEntropyLoss": (new_loss, loss_of_linear, layers_of_loss),
}
PLACES = [(kind, place) for kind in MODULES for place, _ in MODULES[kind][0]().named_children()]
each_place = pytest.mark.parametrize(("kind", "place"), PLACES)


def compare(kind: str, change: Callable[[nn.Module], list[str]]) -> None:
    new, ours, by_layers = MODULES[kind]
    found = []
    for run in (by_layers, ours):
        torch.manual_seed(2)
        module = new().double()
        log = change(module)
        found.append((results(module, lambda m, run=run: run(m, X.clone().requires_grad_())), log))
    assert found[1][1] == found[0][1]
    torch.testing.assert_close(found[1][0], found[0][0], **CLOSE)


@each_place
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_layer_is_called(kind, place, change):
    def apply(module):
        log: list[str] = []
        CHANGES[change](module, place, log)
        return log

    compare(kind, apply)


@each_place
def test_a_quantised_weight_is_read_by_its_layer(kind, place):
    compare(kind, lambda module: quantize(module, place) or [])


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(
    "register",
    [
        of_all.register_module_forward_pre_hook,
        of_all.register_module_forward_hook,
        of_all.register_module_full_backward_pre_hook,
        of_all.register_module_full_backward_hook,
    ],
)
def test_a_hook_of_all_modules_sees_each(kind, register):
    new, ours, _ = MODULES[kind]
    module, seen = new().double(), []
    handle = register(lambda m, *_: seen.append(m) or None)
    try:
        ours(module, X.clone().requires_grad_()).backward()
    finally:
        handle.remove()
    assert set(seen) == set(module.modules())


def test_losses_of_rows_keep_their_shape():
    loss = tfk.nn.LinearCrossEntropyLoss(8, 6, reduction="none").double()
    expected = loss(X.expand(2, 5, 8), Y.expand(2, 5))
    loss.linear.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(loss(X.expand(2, 5, 8), Y.expand(2, 5)), expected)
