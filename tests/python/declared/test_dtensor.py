# SPDX-License-Identifier: MIT
"""DTensor: two processes compute the result of one, for every placement of the tensors."""

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

from transformer_kernels import functional
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
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing.declared import combinations, passes, without_dropout
from transformer_kernels.testing.programs import leave

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
    """The whole result and the whole gradients."""
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
    for op in DECLARED.values():
        _check_op(op, mesh)
    _check_functions(mesh)
    _check_compiled(mesh)
    _check_other_calls(mesh, Partial(), Replicate(), distribute_tensor)
    dist.barrier()  # neither goes while the other's messages are on their way
    dist.destroy_process_group()
    leave()


def _share(x: Any, mesh: Any, dim: int | None) -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    if not isinstance(x, Tensor):
        return x
    place = Replicate() if dim is None or x.dim() == 0 else Shard(dim % x.dim())
    return distribute_tensor(x, mesh, [place])


def _whole_passes(op: Op, values: dict[str, Any]) -> list[Tensor]:
    tensors: list[Any] = passes(op, values)
    return [t.full_tensor() if isinstance(t, _dtensor()) else t for t in tensors]


def _check_op(op: Op, mesh: Any) -> None:
    """All arguments lie split, by their first dimension or by their last; then the first alone."""
    given = [without_dropout(op, values) for values in combinations(op)]
    for values in (given[0], given[-1]):
        expected = _whole_passes(op, values)
        for dim, alone in ((0, False), (-1, False), (0, True), (-1, True)):
            split = {
                name: _share(x, mesh, dim if name == op.names[0] or not alone else None)
                for name, x in values.items()
            }
            for a, b in zip(_whole_passes(op, split), expected, strict=True):
                words = f"{op.name}, {dim}, {'the first' if alone else 'all'}"
                torch.testing.assert_close(
                    a, b, rtol=1e-4, atol=1e-4, msg=lambda m, n=words: f"{n}: {m}"
                )


def _rotate_in_place(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q = q.clone()
    functional.rope(q, None, cos, sin, inplace=True)
    return q


def _check_frequencies(mesh: Any) -> None:
    """A gradient that is divided by how often a token occurs counts the tokens of all processes."""
    indices, table = torch.zeros(4, 2, dtype=torch.int64), torch.randn(3, 8)

    def gradient(i: Any, t: Any) -> Any:
        y = functional.embedding(i, t.requires_grad_(), scale_grad_by_freq=True)
        return torch.autograd.grad(y.sum(), t)[0]

    found = gradient(_share(indices, mesh, 0), _share(table, mesh, None))
    torch.testing.assert_close(found.full_tensor(), gradient(indices, table))


def _check_compiled(mesh: Any) -> None:
    """One graph holds calls of DTensors, whose ways the compiler traces."""
    x, w = torch.randn(4, 8), torch.randn(8)
    labels = torch.tensor([1, 0, 3, 7])
    calls: list[tuple[Any, tuple[Tensor, ...]]] = [
        (lambda x, w: layer_norm(gelu(x), (8,), w), (x, w)),
        (functional.cross_entropy, (x, labels)),
    ]
    for call, tensors in calls:
        shared = [
            _share(t, mesh, 0 if i == 0 or t is labels else None) for i, t in enumerate(tensors)
        ]
        found = torch.compile(call, fullgraph=True, backend="aot_eager")(*shared)
        torch.testing.assert_close(found.full_tensor(), call(*tensors))


def _check_functions(mesh: Any) -> None:
    """Functions on the way to the ops take DTensors as well, and results stay where rows are."""
    from torch.distributed.tensor import Shard

    table, labels = torch.randn(11, 8), torch.tensor([[1, 2, 0], [3, 10, 4]])
    x, q = torch.randn(2, 3, 11), torch.randn(2, 3, 4, 8)
    of_layer = (x[..., :8], table, labels)
    cos, sin = functional.rope_tables(3, 8)
    calls: list[tuple[Any, tuple[Tensor, ...], int]] = [
        (lambda i, t: functional.embedding(i, t), (labels, table), 1),
        (lambda i, t: functional.embedding_add(i, t, None, t), (labels, table), 1),
        (functional.token_log_probs, (x, labels), 2),
        (lambda x, i: functional.cross_entropy(x.flatten(0, 1), i.flatten()), (x, labels), 0),
        (lambda q, c, s: functional.rope(q, None, c, s), (q, cos, sin), 1),
        (_rotate_in_place, (q, cos, sin), 1),
        (lambda q, c, s: functional.qk_norm(q, q, cos=c, sin=s)[1], (q, cos, sin), 1),
        (lambda x, w, i: functional.linear_token_log_probs(x, w, i), of_layer, 0),
        (lambda x, w, i: functional.linear_cross_entropy(x, w, i), of_layer, 0),
    ]  # fmt: skip
    _check_frequencies(mesh)
    for call, tensors, split in calls:
        shared = [_share(t, mesh, 0 if i == 0 else None) for i, t in enumerate(tensors)]
        found = call(*shared)
        torch.testing.assert_close(found.full_tensor(), call(*tensors))
        if split:
            assert found.placements[0] == Shard(0)


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
