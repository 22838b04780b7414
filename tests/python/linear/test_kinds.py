# SPDX-License-Identifier: MIT
"""Tensors that are no strided memory: layers take them as PyTorch's do, or refuse them in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nested import nested_tensor

import transformer_kernels as tfk

F = tfk.functional

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # that these kinds are prototypes

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "mkldnn": Tensor.to_mkldnn,
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
    "nested": lambda x: nested_tensor([x, x]),
}
LAYERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "linear": lambda x, w, _: F.linear(x, w),
    "linear_list": lambda x, w, _: F.linear_list(x, [w, w])[1],
    "linear_act": lambda x, w, _: F.linear_act(x, w, None, "relu"),
    "gated_linear": lambda x, w, _: F.gated_linear(x, w, w),
    "mlp": lambda x, w, down: F.mlp(x, w, None, down),
    "gated_mlp": lambda x, w, down: F.gated_mlp(x, w, w, down),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
def test_an_input_without_memory(layer: str, kind: str, grad: bool) -> None:
    x = torch.randn(4, 16)
    weight, down = torch.randn(32, 16, requires_grad=grad), torch.randn(16, 32)
    try:
        found = LAYERS[layer](KINDS[kind](x), weight, down)
    except tfk.ArgumentTypeError:  # which names the argument
        return
    exact = LAYERS[layer](torch.stack([x, x]) if kind == "nested" else x, weight, down)
    found = torch.stack(found.unbind()) if kind == "nested" else found.to_dense()
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-3)
