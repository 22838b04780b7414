# SPDX-License-Identifier: MIT
"""DTensor: two processes compute what one does, however the tensors lie."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from transformer_kernels.functional import (
    add_layer_norm,
    add_rms_norm,
    gelu,
    layer_norm,
    log_softmax,
    rms_norm,
    silu,
    softmax,
    swiglu,
)

SHAPE = (3, 5, 8)  # neither process has as many rows as the other
CALLS: dict[str, Any] = {
    "layer_norm": lambda x, w, _: layer_norm(x, (8,), w, w),
    "layer_norm, plain": lambda x, *_: layer_norm(x, (8,)),
    "layer_norm of two dims": lambda x, *_: layer_norm(x, (5, 8)),
    "rms_norm": lambda x, w, _: rms_norm(x, (8,), w, 1e-5, bias=w),
    "rms_norm, no eps": lambda x, w, _: rms_norm(x, (8,), w),
    "add_layer_norm": lambda x, w, _: add_layer_norm(x, x * 2, (8,), w, w)[0],
    "add_rms_norm": lambda x, w, _: sum(add_rms_norm(x, x * 2, (8,), w)),
    "softmax": lambda x, *_: softmax(x, -1, scale=0.5),
    "softmax over 0": lambda x, *_: softmax(x, 0),
    "softmax, causal": lambda x, *_: softmax(x, -1, causal=True),
    "softmax, mask": lambda x, _, m: softmax(x, -1, mask=m),
    "softmax, key mask": lambda x, w, _: softmax(x, -1, mask=w),
    "log_softmax over 1": lambda x, *_: log_softmax(x, 1),
    "gelu": lambda x, *_: gelu(x),
    "silu, bias": lambda x, w, _: silu(x, bias=w),
    "swiglu": lambda x, w, _: swiglu(x, x * 2, bias=w, up_bias=w),
    "swiglu, packed": lambda x, w, _: swiglu(torch.cat((x, x), -1), bias=torch.cat((w, w))),
}


def _tensors() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = (SHAPE, (8,), (5, 1))
    return [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]


def _results(call: Any, tensors: list[Any]) -> list[Tensor]:
    """The result and the gradients, whole."""
    y = call(*tensors)
    seed = torch.arange(y.numel(), dtype=y.dtype).view(SHAPE).sin()
    if not isinstance(y, _dtensor()):
        gradients = torch.autograd.grad((y * seed).sum(), tensors, allow_unused=True)
        return [y, *(g for g in gradients if g is not None)]
    from torch.distributed.tensor import distribute_tensor

    seeds = distribute_tensor(seed, y.device_mesh, y.placements)
    gradients = torch.autograd.grad(y, tensors, seeds, allow_unused=True)
    return [t.full_tensor() for t in (y, *gradients) if t is not None]


def _dtensor() -> type:
    from torch.distributed.tensor import DTensor

    return DTensor


def _run_rank(rank: int, file: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    lie = {"0": Shard(0), "1": Shard(1), "last": Shard(-1), "replicated": Replicate()}
    # One set of placements is run after another: none may be taken for the one before it.
    for (name, call), (where, placement) in itertools.product(CALLS.items(), lie.items()):
        whole = _tensors()
        expected = _results(call, whole)
        places = [placement, Replicate(), Replicate()]
        sharded = [
            distribute_tensor(t.detach(), mesh, [p]).requires_grad_()
            for t, p in zip(whole, places, strict=True)
        ]
        for a, b in zip(_results(call, sharded), expected, strict=True):
            torch.testing.assert_close(a, b, msg=lambda m, n=f"{name}, {where}": f"{n}: {m}")
        kept = call(*sharded).placements[0]
        if where == "0" and name != "softmax over 0":
            assert kept == Shard(0), name
        if where == "last" and name in ("gelu", "silu, bias", "swiglu"):
            assert kept == Shard(2), name
    _check_other_calls(mesh, Partial(), Replicate(), distribute_tensor)
    dist.barrier()  # neither goes while the other's messages are on their way
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may outlive the interpreter, and end the process with an error


def _check_other_calls(mesh: Any, partial: Any, replicate: Any, distribute: Any) -> None:
    x, w, _ = (t.detach() for t in _tensors())
    halves = _dtensor().from_local(x / 2, mesh, [partial])  # type: ignore[attr-defined]
    torch.testing.assert_close(rms_norm(halves, (8,)).full_tensor(), rms_norm(x, (8,)))
    there = distribute(x, mesh, [replicate])
    for call, words in (
        (lambda: layer_norm(there, (8,), w), "layer_norm: weight is a Tensor, expected a DTensor"),
        (
            lambda: layer_norm(x, (8,), distribute(w, mesh, [replicate])),
            "layer_norm: x is a Tensor",
        ),
        (lambda: add_rms_norm(there, x, (8,)), "rms_norm: residual is a Tensor, expected a DTen"),
        (lambda: gelu(there, bias=w), "gelu: bias is a Tensor, expected a DTensor as x is"),
        (lambda: swiglu(there, x), "swiglu: up is a Tensor, expected a DTensor as gate is"),
        (lambda: swiglu(x, there), "swiglu: gate is a Tensor, expected a DTensor as other"),
        (lambda: softmax(there, -1, mask=w), "softmax: mask is a Tensor, expected a DTensor"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


def test_two_processes(tmp_path: Path) -> None:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("PyTorch was built without gloo")
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in ranks:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output


if __name__ == "__main__":
    _run_rank(int(sys.argv[1]), sys.argv[2])
