# SPDX-License-Identifier: MIT
"""DTensor: two processes together compute the result of one."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

import transformer_kernels as tfk
from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.testing.attention import tensors
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.programs import leave

WORLD = 2
BATCH, TIME, HEADS = Shard(0), Shard(1), Shard(2)


def _features(heads: int, batch: int) -> dict[str, Tensor]:
    """Features of four heads and a batch of two; ``heads`` and ``batch`` of 1 broadcast."""
    return {
        "bias": torch.randn(batch, heads, 1, 9).double(),
        "mask": torch.rand(batch, 1, 6, 9) > 0.2,
        "alibi_slopes": torch.rand(batch, 4).double(),
        "sinks": torch.randn(4).double(),
    }


def _gradients(function: Any, arguments: dict[str, Any], **options: Any) -> list[Tensor]:
    """The results of ``function``, and the gradients of all tensors that have one."""
    leaves = {
        name: x.detach().requires_grad_()
        for name, x in arguments.items()
        if x.is_floating_point() and name != "alibi_slopes"
    }
    out, lse = function(**{**arguments, **leaves}, return_lse=True, **options)
    loss = out.square().sum() + lse.sin().sum()
    return [out, lse, *torch.autograd.grad(loss, list(leaves.values()))]


def _agree(
    function: Any, arguments: dict[str, Tensor], places: dict[str, Any], **options: Any
) -> list[Any]:
    """Compares two processes with one; returns where results and gradients of q, k and v lie."""
    mesh = init_device_mesh("cpu", (WORLD,))
    alone = _gradients(function, arguments, **options)
    split = {
        name: distribute_tensor(x, mesh, [places.get(name, Replicate())])
        for name, x in arguments.items()
    }
    together: list[Any] = _gradients(function, split, **options)
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a.full_tensor(), b)
    return [x.placements[0] for x in together[:5]]


def _batches(place: Any, kv_heads: int = 2) -> list[Any]:
    q, k, v = tensors(6, 9, 4, kv_heads, dim=8, value_dim=5, dtype=torch.float64)
    found = []
    for batch, heads in itertools.product((1, 2), (1, 4)):
        arguments = {"q": q, "k": k, "v": v, **_features(heads, batch)}
        places = {"q": place, "k": place, "v": place}
        found = _agree(attention, arguments, places, causal=True, softcap=2.0)
    return found


def _split_by_batch() -> None:
    assert _batches(BATCH) == [BATCH] * 5


def _split_by_heads() -> None:
    assert _batches(HEADS) == [HEADS, Shard(1), HEADS, HEADS, HEADS]


def _one_head_of_keys_is_for_all() -> None:
    assert _batches(HEADS, kv_heads=1)[:3] == [HEADS, Shard(1), HEADS]


def _three_heads_of_keys_are_not_split() -> None:
    q, k, v = tensors(6, 9, 6, 3, dim=8, dtype=torch.float64)
    found = _agree(attention, {"q": q, "k": k, "v": v}, {"q": HEADS, "k": HEADS, "v": HEADS})
    assert found[0] == Replicate()


def _other_backends() -> None:
    q, k, v = tensors(6, 9, 4, 2, dim=8, dtype=torch.float64)
    places = {"q": HEADS, "k": HEADS, "v": HEADS}
    _agree(attention, {"q": q, "k": k, "v": v}, places, backend="reference")


def _time_is_gathered() -> None:
    assert _batches(TIME)[0] == Replicate()


def _split_in_different_ways() -> None:
    q, k, v = tensors(6, 9, 4, 4, dim=8, dtype=torch.float64)
    _agree(attention, {"q": q, "k": k, "v": v}, {"q": HEADS, "k": BATCH, "v": Replicate()})


def _packed_sequences() -> None:
    q, k, v = (randn((9, 4, 8), torch.float64) for _ in range(3))
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    arguments = {"q": q, "k": k, "v": v, "sinks": torch.randn(4).double()}
    offsets_of = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets}
    places = {"q": TIME, "k": TIME, "v": TIME}  # their heads
    found = _agree(attention_varlen, {**arguments, **offsets_of}, places, causal=True)
    assert found == [TIME, Shard(0), TIME, TIME, TIME]


def _the_dropin() -> None:
    mesh = init_device_mesh("cpu", (WORLD,))
    q = randn((2, 4, 6, 8), torch.float64)
    split = distribute_tensor(q, mesh, [Shard(1)])
    sdpa = tfk.functional.scaled_dot_product_attention
    out: Any = sdpa(split, split, split, is_causal=True)
    assert out.placements == (Shard(1),)
    torch.testing.assert_close(out.full_tensor(), sdpa(q, q, q, is_causal=True))


def _dropped_by_all() -> None:
    """The mask counts the whole's positions, so dropout is not split."""
    q, k, v = tensors(6, 9, 4, 2, dim=8, dtype=torch.float64)
    places, seed = {"q": HEADS, "k": HEADS, "v": HEADS}, torch.tensor([7, 3])
    found = _agree(attention, {"q": q, "k": k, "v": v}, places, dropout=0.4, seed=seed)
    assert found[0] == Replicate()


def _refusals() -> None:
    mesh = init_device_mesh("cpu", (WORLD,))
    q = distribute_tensor(randn((2, 6, 4, 8), torch.float32), mesh, [BATCH])
    with pytest.raises(TypeError, match="attention: k is a Tensor, expected a DTensor as q is"):
        attention(q, q.to_local(), q)
    with pytest.raises(ValueError, match="attention: k has shape"):
        attention(q, q[..., 1:], q)


CASES = [
    _split_by_batch, _split_by_heads, _one_head_of_keys_is_for_all,
    _three_heads_of_keys_are_not_split, _other_backends, _time_is_gathered,
    _split_in_different_ways, _packed_sequences, _the_dropin, _dropped_by_all, _refusals,
]  # fmt: skip


def _process(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD,
        timeout=timedelta(minutes=3),
    )  # fmt: skip
    for case in CASES:
        torch.manual_seed(1)
        try:
            case()
        except BaseException as error:
            raise AssertionError(f"{case.__name__}: {error}") from error
    dist.barrier()  # neither goes while the other's messages are on their way
    dist.destroy_process_group()
    leave()


@pytest.mark.skipif(not dist.is_available(), reason="PyTorch was built without torch.distributed")
def test_two_processes(tmp_path: Path) -> None:
    multiprocessing.spawn(_process, (str(tmp_path / "meeting"),), nprocs=WORLD)
