# SPDX-License-Identifier: MIT
"""The activations' values and slopes in Triton; each function has the name of its row."""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _times_sigmoid(x, z, slope_of_z):
    """Returns x * sigmoid(z) and its slope."""
    e = tl.exp(-tl.abs(z))
    near, far = 1 / (1 + e), e / (1 + e)  # sigmoid(|z|) and 1 - sigmoid(|z|)
    s = tl.where(z >= 0, near, far)
    return x * s, s + x * (near * far) * slope_of_z


@triton.jit
def gelu(x):
    cdf = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    return x * cdf, cdf + x * (0.3989422804014327 * tl.exp(-0.5 * x * x))


@triton.jit
def gelu_tanh(x):
    square = x * x  # tanh(u) = 2 * sigmoid(2u) - 1
    z = 1.5957691216057308 * x * (1 + 0.044715 * square)
    return _times_sigmoid(x, z, 1.5957691216057308 * (1 + 0.134145 * square))


@triton.jit
def silu(x):
    return _times_sigmoid(x, x, 1.0)


@triton.jit
def relu(x):
    return tl.where(x <= 0, 0.0, x), tl.where(x <= 0, 0.0, 1.0)


@triton.jit
def relu_squared(x):
    r = tl.where(x <= 0, 0.0, x)
    return r * r, 2 * r


@triton.jit
def quick_gelu(x):
    return _times_sigmoid(x, 1.702 * x, 1.702)
