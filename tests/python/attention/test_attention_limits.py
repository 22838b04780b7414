# SPDX-License-Identifier: MIT
"""attention and attention_varlen: the arguments that they refuse, and the memory that they take."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.functional import attention
from transformer_kernels.testing.attention import tensors

MEMORY = """
import resource, sys, torch, transformer_kernels as tfk
torch.set_num_threads(2)
t = 32768
q, k, v = (torch.randn(1, t, 1, 16, requires_grad=True) for _ in range(3))
tfk.functional.attention(q[:, :64], k[:, :64], v[:, :64]).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tfk.functional.attention(q, k, v, causal=True).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_grows_with_the_length_alone() -> None:
    """With 32K tokens the scores alone would be 4 GiB."""
    assert resource.getrusage(resource.RUSAGE_SELF)
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 200


# ---- messages -----------------------------------------------------------------------------------

Q, K, V = tensors(6, 9, 4, 2, dim=8)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"q": Q[0]}, "q has 3 dimensions, expected 4 (batch, time, heads, dim)"),
    "heads": ({"q": Q[:, :, :3]}, "q has 3 heads, expected a multiple of 2 (the heads of k)"),
    "batch": (
        {"k": K[:1]}, "k has shape (1, 9, 2, 8), expected (2, 9, 2, 8) (q and the heads of k)",
    ),
    "values": (
        {"v": V[:, 1:]}, "v has shape (2, 8, 2, 8), expected (2, 9, 2, 8) (k and the dim of v)",
    ),
    "head dim": (
        {"q": torch.zeros(2, 6, 4, 257), "k": torch.zeros(2, 9, 2, 257)},
        "q has a head dim of 257, expected 1 to 256",
    ),
    "bias": (
        {"bias": torch.zeros(5, 9)},
        "bias has shape (5, 9), expected one that broadcasts to (2, 4, 6, 9) (batch, heads, "
        "queries, keys)",
    ),
    "mask dtype": ({"mask": torch.zeros(9)}, "mask is float32, expected bool"),
    "slopes": (
        {"alibi_slopes": torch.zeros(3)},
        "alibi_slopes has shape (3,), expected one that broadcasts to (2, 4) (batch and heads of "
        "q)",
    ),
    "slopes' gradient": (
        {"alibi_slopes": torch.zeros(4, requires_grad=True)},
        "alibi_slopes requires a gradient, expected a constant (it has none)",
    ),
    "sinks": ({"sinks": torch.zeros(3)}, "sinks has 3 elements, expected 4 (the heads of q)"),
    "window": ({"window": (-2, 0)}, "window_left is -2, expected -1 (no bound) or above"),
    "window's type": (
        {"window": 3}, "window is 3, expected two ints (left, right), -1 for no bound",
    ),
    "window's numbers": (
        {"window": ("a", 0)},
        "window is ('a', 0), expected two ints (left, right), -1 for no bound",
    ),
    "seed": (
        {"dropout": 0.5, "seed": torch.zeros(3, dtype=torch.int64)},
        "seed is not a seed and an offset, expected 2 int64 on the CPU or beside q",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, device: str) -> None:
    spoiled, message = REFUSED[name]
    arguments = {"q": Q, "k": K, "v": V, **spoiled}
    arguments = {
        n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in arguments.items()
    }
    with pytest.raises((ValueError, TypeError)) as caught:
        attention(**arguments)
    assert str(caught.value) == f"attention: {message}"


@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
def test_offsets_are_checked(backend: str) -> None:
    q, k, v = (torch.zeros(9, 2, 8) for _ in range(3))

    def message(at: Any, other: Any = None) -> str:
        offsets = [x if x is None else torch.tensor(x, dtype=torch.int32) for x in (at, other)]
        with pytest.raises(ValueError, match="attention: ") as caught:
            tfk.functional.attention_varlen(q, k, v, *offsets, backend=backend)
        return str(caught.value).removeprefix("attention: ")

    assert message([1, 9]) == "cu_seqlens_q starts with 1, expected 0"
    assert message([0, 5, 4]) == "cu_seqlens_q falls from 5 to 4, expected ascending numbers"
    wanted = "expected at most 9 (the rows of q)"
    assert message([0, 10]) == f"cu_seqlens_q ends with 10, {wanted}"
    wanted = "expected 1 (those of cu_seqlens_q)"
    assert message([0, 9], [0, 4, 9]) == f"cu_seqlens_k has 2 sequences, {wanted}"
    assert message([]) == (
        "cu_seqlens_q has 1 dimensions and 0 elements, expected contiguous memory of one dimension,"
        " one more than sequences"
    )
    with pytest.raises(TypeError, match="cu_seqlens_q is NoneType, expected a Tensor"):
        tfk.functional.attention_varlen(q, k, v, None, backend=backend)


FLAGS = ("causal", "top_left", "heads_first", "return_lse", "deterministic")


def test_types_of_numbers_and_flags() -> None:
    for name in FLAGS:
        with pytest.raises(TypeError, match=f"attention: {name} is 1, expected True or False"):
            attention(Q, K, V, **{name: 1})
    with pytest.raises(TypeError, match=r"attention: window is \(True, 3\), expected two ints"):
        attention(Q, K, V, window=(True, 3))
    with pytest.raises(TypeError, match="attention: dropout is a tensor of 2 elements, expected"):
        attention(Q, K, V, dropout=torch.ones(2))  # type: ignore[arg-type]
    low = torch.autocast("cpu", dtype=torch.bfloat16)
    with low, pytest.raises(TypeError, match="attention: k is NoneType, expected a Tensor"):
        attention(Q, None, V)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["k", "mask", "sinks", "seed"])
def test_a_tensor_without_memory_is_refused(name: str) -> None:
    """If one tensor is on the meta device, PyTorch asks for shapes only and would write no
    result."""
    arguments: dict[str, Any] = {
        "q": Q, "k": K, "v": V, "mask": torch.ones(9, dtype=torch.bool), "sinks": torch.zeros(4),
        "dropout": 0.5, "seed": torch.tensor([1, 2]),
    }  # fmt: skip
    arguments[name] = arguments[name].to("meta")
    with pytest.raises(ValueError, match="on meta, expected cpu"):
        attention(**arguments)


def test_backends_without_a_kernel_are_named() -> None:
    with pytest.raises(ValueError, match="backend is 'gpu', expected one of"):
        attention(Q, K, V, backend="gpu")
    with pytest.raises(ValueError, match="backend is 'cuda', expected one that serves"):
        attention(Q, K, V, backend="cuda")
