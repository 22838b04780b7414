# SPDX-License-Identifier: MIT
"""attention in threads that have made no CUDA call of their own."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from transformer_kernels.functional import attention
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.programs import LEAVE

pytestmark = pytest.mark.cuda

# The backward pass runs in a thread of autograd's, whose first CUDA work it is: the allocator has
# all that it needs.
FIRST_BACKWARD = """
import sys, torch
from transformer_kernels.functional import attention
dtype = getattr(torch, sys.argv[1])
q, k, v = (torch.randn(2, 64, 2, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in "qkv")
del [torch.empty(64 << 20, device="cuda")][:]
out = attention(q, k, v, causal=True)
gradients = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
torch.cuda.synchronize()
assert all(torch.isfinite(gradient).all() for gradient in gradients)
print("done")
"""


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_first_backward_of_a_process(name: str) -> None:
    command = [sys.executable, "-c", FIRST_BACKWARD + LEAVE, name]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "done\n"


@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16], ids=str)
def test_fresh_thread(of: torch.dtype) -> None:
    """A thread that made no CUDA call of its own computes the same bits."""
    q, k, v = (randn((2, 130, 2, 64), of, "cuda") for _ in range(3))
    expected = attention(q, k, v)
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(attention(q, k, v)))
    thread.start()
    thread.join()
    assert torch.equal(results[0], expected)
