# SPDX-License-Identifier: MIT
"""Trains a small Llama of bytes on CPython's documentation, in one process or in several.

    python examples/python/parallel/train.py
    torchrun --nproc-per-node 2 examples/python/parallel/train.py --way tensor --save /tmp/llama
    torchrun --nproc-per-node 4 examples/python/parallel/train.py --way tensor --load /tmp/llama
    torchrun --nproc-per-node 2 examples/python/parallel/train.py --way fsdp

All of them print the same losses: tensor parallelism splits heads and channels, FSDP2 splits
parameters and the rows of each batch.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import transformer_kernels as tfk
from transformer_kernels.bench import training

LLAMA = tfk.models.LanguageModelConfig(
    vocab_size=256, context=64, dim=128, num_layers=2, num_heads=8, num_kv_heads=4, inner_dim=384,
    norm="rms_norm", activation="swiglu", positions="rope", bias=False,
)  # fmt: skip
BATCH, STEPS, SAVED_AFTER = 8, 12, 6


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=("one", "tensor", "fsdp"), default="one")
    parser.add_argument("--save", type=Path, help=f"folder of a checkpoint after {SAVED_AFTER}")
    parser.add_argument("--load", type=Path, help="continue from a checkpoint of any ranks")
    parser.add_argument("--report", type=Path, help="file for losses and bytes, by rank 0")
    parser.add_argument("--leave-at", type=int, default=-1, help="step at which rank 1 dies")
    return parser.parse_args()


def start(way: str) -> DeviceMesh | None:
    """The mesh of all ranks, whose process group raises where one does not answer for a minute."""
    if way == "one":
        return None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(timeout=datetime.timedelta(minutes=1))
    return init_device_mesh(device, (dist.get_world_size(),))


def split(model: tfk.models.LanguageModel, mesh: DeviceMesh | None, way: str, tokens: Any) -> None:
    if way == "tensor":
        found = tfk.parallel.parallelize(model, mesh, inputs=(tokens,))
        if dist.get_rank() == 0:
            print(found)
    elif way == "fsdp":
        for layer in model.transformer.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """DCP reads what this rank holds, however many ranks wrote it."""
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )


def mean_over_ranks(loss: torch.Tensor, way: str) -> float:
    if way == "fsdp":
        dist.all_reduce(loss, dist.ReduceOp.AVG if loss.is_cuda else dist.ReduceOp.SUM)
        loss = loss if loss.is_cuda else loss / dist.get_world_size()
    return loss.item()


def held(model: torch.nn.Module) -> int:
    """Bytes of the parameters that this rank holds."""
    own = (getattr(p, "to_local", lambda p=p: p)() for p in model.parameters())
    return sum(x.numel() * x.element_size() for x in own)


def main() -> None:
    given = options()
    torch.set_num_threads(1)  # processes share the cores of this machine
    mesh = start(given.way)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if mesh else (0, 1)
    device = mesh.device_type if mesh else "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = tfk.models.LanguageModel(LLAMA).to(device)
    batches = (
        rows.to(device)
        for rows in training.windows(training.documentation(), LLAMA.context + 1, BATCH)
    )
    split(model, mesh, given.way, next(batches)[:, :-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    first = 0
    if given.load:
        first = SAVED_AFTER
        load(model, optimizer, given.load)
    losses, sent = [], 0
    for step, rows in enumerate(itertools.islice(batches, first, STEPS), first):
        if rank == 1 and step == given.leave_at:
            os._exit(1)
        own = rows[rank::ranks] if given.way == "fsdp" else rows
        with tfk.parallel.Traffic() as traffic:
            loss = model(own[:, :-1], own[:, 1:])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean_over_ranks(loss.detach(), given.way))
        sent = traffic.bytes
        if rank == 0:
            print(f"step {step}: loss {losses[-1]:.5f}")
        if given.save and step == SAVED_AFTER - 1:
            dcp.save(state_of(model, optimizer), checkpoint_id=given.save)
    if given.report and rank == 0:
        figures = {"losses": losses, "held": held(model), "sent": sent, "ranks": ranks}
        given.report.write_text(json.dumps(figures))
    if mesh:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
