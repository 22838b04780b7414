# SPDX-License-Identifier: MIT
"""Expected results of calls, as expressions of PyTorch's own operations."""

from __future__ import annotations

NORM = "F.layer_norm(x, (64,), w, b, {eps})"
RMS = "F.rms_norm(x, (64,), w, {eps})"
SUM = "F.rms_norm(x + residual, (64,), w, {eps}), x + residual"
SWIGLU = "F.linear(F.silu(F.linear(x, w1, b1)) * F.linear(x, w2, b2), w3, b3)"


def _affine(x: str, layer: str) -> str:
    return f"F.linear({x}, m.{layer}.weight, m.{layer}.bias)"


_HIDDEN = f"F.silu({_affine('x', 'gate_proj')}) * {_affine('x', 'up_proj')}"
GATED = f"lambda m, x: {_affine(_HIDDEN, 'down_proj')}"
STOCK = "lambda m, *inputs: (setattr(m, 'kernels', 'torch'), m(*inputs))[1]"
COMPARED = "lambda found: not found.refused and found['ours'].speedup > 0"
_GELU = f"F.gelu({_affine('x', 'fc1')}, approximate='tanh')"
GELU_MLP = f"lambda m, x: {_affine(_GELU, 'fc2')}"


def sdpa(options: str = "", layout: str = "BTHD") -> str:
    """PyTorch's attention on tensors of this layout."""
    order = tuple(layout.index(letter) for letter in "BHTD")
    back = tuple("BHTD".index(letter) for letter in layout)
    given = ", ".join(f"{name}.permute{order}" for name in "qkv")
    more = f", {options}" if options else ""
    return f"F.scaled_dot_product_attention({given}{more}).permute{back}"


def rotated(name: str, cos: str, sin: str) -> str:
    """Rotates halves, with tables that broadcast to a tensor."""
    halves = f"torch.cat((-{name}.chunk(2, -1)[1], {name}.chunk(2, -1)[0]), -1)"
    return f"{name} * {cos} + {halves} * {sin}"


SEEN = "torch.ones(6, 6, dtype=torch.bool)"
