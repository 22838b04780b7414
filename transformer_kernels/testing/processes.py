# SPDX-License-Identifier: MIT
"""Test cases that several processes run together, each in its place of one process group."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.multiprocessing.spawn import start_processes

from .programs import leave

_PRELOADED = [
    "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.tensor",
    "transformer_kernels.testing.attention",
]  # fmt: skip
TIMEOUT = timedelta(minutes=3)  # ends a hang; no test waits for it


def run_together(cases: Sequence[Callable[[], None]], world: int, folder: Path) -> None:
    """Runs functions of a module in ``world`` processes of one gloo group, one after the other,
    each with the random numbers of one seed in all processes.

    The processes are forked from one that has imported what cases need: that takes longer than all
    of them.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    start_processes(
        _process, (cases, world, str(folder / "meeting"), torch.initial_seed()), nprocs=world,
        start_method="forkserver",
    )  # fmt: skip


def _process(
    rank: int, cases: Sequence[Callable[[], None]], world: int, meeting: str, seed: int
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=TIMEOUT
    )
    for case in cases:
        torch.manual_seed(seed)
        try:
            case()
        except BaseException as error:
            raise AssertionError(f"{case.__name__} in process {rank}: {error}") from error
    dist.barrier()  # none goes while another's messages are on their way
    dist.destroy_process_group()
    leave()
