# SPDX-License-Identifier: MIT
"""Two kernels of your own, one in Triton and one in C++, with checks, gradients and a benchmark.

The Triton kernel is the soft cap of logits (Gemma 2, arXiv:2408.00118), cap * tanh(x / cap). It
runs on a GPU; without one Triton's interpreter computes its results on the CPU. The C++ kernel is
relu(x + bias)^2 in one pass, on a CPU with a compiler. Elsewhere both run their formulas, and say
so.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.measure import table
from transformer_kernels.workbench.arguments import Number, Operand, Param, Rows

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # must be set before Triton is imported
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BLOCK = 1024

if triton is not None:

    @triton.jit
    def _tanh(z):
        power = tl.exp(-2 * tl.abs(z))
        return tl.where(z < 0, -1.0, 1.0) * (1 - power) / (1 + power)

    @triton.jit
    def _forward(x, y, cap, n, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        z = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) / cap
        tl.store(y + at, cap * _tanh(z), mask=at < n)

    @triton.jit
    def _backward(dy, x, dx, cap, n, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tanh = _tanh(tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) / cap)
        slope = 1 - tanh * tanh
        g = tl.load(dy + at, mask=at < n, other=0.0).to(tl.float32)
        tl.store(dx + at, g * slope, mask=at < n)


class SoftCap(tfk.workbench.Kernel):
    """The soft cap; both passes are Triton kernels."""

    arguments = (Operand("x"), Number("cap", least=1e-3))

    def formula(self, x: Tensor, cap: float = 30.0) -> Tensor:
        return cap * torch.tanh(x / cap)

    def forward(self, x: Tensor, cap: float) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        _forward[(triton.cdiv(x.numel(), BLOCK),)](x, y, cap, x.numel(), BLOCK=BLOCK)
        return y

    def backward(self, dy: Tensor, x: Tensor, cap: float) -> Tensor:
        dy, x = dy.contiguous(), x.contiguous()
        dx = torch.empty_like(x)
        _backward[(triton.cdiv(x.numel(), BLOCK),)](dy, x, dx, cap, x.numel(), BLOCK=BLOCK)
        return dx

    def why_absent(self, device: torch.device) -> str | None:
        if triton is None:
            return "Triton is not installed"
        if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return "Triton runs on a GPU, or through its interpreter with TRITON_INTERPRET=1"


SOURCE = """
#include <cstdint>

extern "C" void relu_squared(const float* x, const float* bias, float* y, std::int64_t rows,
                             std::int64_t cols) {
  for (std::int64_t row = 0; row < rows; ++row, x += cols, y += cols) {
    for (std::int64_t i = 0; i < cols; ++i) {
      const float z = x[i] + bias[i];
      y[i] = z > 0 ? z * z : 0 * z;  // NaN stays
    }
  }
}
"""


def compiled() -> ctypes.CDLL | None:
    """Compiles the C++ kernel and loads it; None where there is no compiler."""
    compiler = shutil.which("c++")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        source.write_text(SOURCE)
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", source, "-o", library]
        subprocess.run(command, check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.relu_squared.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
    return loaded


class BiasReluSquared(tfk.workbench.Kernel):
    """relu(x + bias)^2; the forward pass is a C++ kernel for float32, the gradient is the
    formula's."""

    arguments = (Rows("x"), Param("bias", optional=False))

    def __init__(self) -> None:
        super().__init__()
        self._library = compiled()

    def formula(self, x: Tensor, bias: Tensor) -> Tensor:
        return torch.relu(x + bias).square()

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        wide, bias = x.float().contiguous(), bias.float().contiguous()
        y = torch.empty_like(wide)
        rows, cols = wide.numel() // max(bias.numel(), 1), bias.numel()
        pointers = (tensor.data_ptr() for tensor in (wide, bias, y))
        self._library.relu_squared(*pointers, rows, cols)
        return y.to(x.dtype)

    def why_absent(self, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"runs on a CPU, not on {device}"
        return "there is no C++ compiler" if self._library is None else None


def show(kernel: tfk.workbench.Kernel, device: torch.device, *more: Any) -> None:
    """Shows checks, derivatives and an error; ``more`` are the arguments after x."""
    print(f"\n{type(kernel).__name__}: {kernel.__doc__}")
    if (why := kernel.why_absent(device)) is not None:
        print(f"  the formula runs: {why}")
    x = torch.randn(64, 256, device=device)
    kernel.check(x, *more)  # both passes against the formula in float64
    print("  forward and backward meet the rule of docs/numerics.md")
    x.requires_grad_()
    (first,) = torch.autograd.grad(kernel(x, *more).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    print(f"  derivatives at {x[0, 0]:.3f}: {first[0, 0]:.3f}, {second[0, 0]:.3f}")


def refused(kernel: tfk.workbench.Kernel, *arguments: Any) -> None:
    try:
        kernel(*arguments)
    except ValueError as error:
        print(f"  {error}")


def timed(
    kernel: tfk.workbench.Kernel, device: torch.device, seconds: float, **settings: Any
) -> None:
    result = kernel.benchmark((2048, 4096), device=device, seconds=seconds, **settings)
    print(table.render(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing a kernel")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parsed = parser.parse_args()
    providers = ["torch", "ours"] if parsed.no_compile else ["torch", "compile", "ours"]
    cpu, has_gpu = torch.device("cpu"), torch.cuda.is_available()

    device = torch.device("cuda") if has_gpu else cpu
    soft_cap = SoftCap()
    show(soft_cap, device, 5.0)
    refused(soft_cap, torch.randn(4), -1.0)
    if has_gpu:
        timed(soft_cap, device, parsed.seconds, providers=providers)
    else:
        print("  not timed: Triton's interpreter runs it, for its results")

    relu_squared = BiasReluSquared()
    show(relu_squared, cpu, torch.randn(256))
    refused(relu_squared, torch.randn(4, 8), torch.randn(7))
    timed(relu_squared, cpu, parsed.seconds, providers=providers, passes=("forward",))


if __name__ == "__main__":
    main()
