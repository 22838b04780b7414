# SPDX-License-Identifier: MIT
"""A rank that dies: the other one raises, and does not wait for ever."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh

from transformer_kernels.parallel import parallelize
from transformer_kernels.testing.processes import meet, unable

RAISED = 7  # the exit status of a rank whose group failed
# Ends a hang. A socket that is closed says so at once; NCCL's ranks share memory, and wait.
TIMEOUTS = {"cpu": timedelta(minutes=2), "cuda": timedelta(seconds=15)}


def _train(rank: int, meeting: str, device: str) -> None:
    meet(rank, 2, meeting, device, TIMEOUTS[device])
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))
    parallelize(model, init_device_mesh(device, (2,)), inputs=torch.randn(2, 8))
    for step in range(3):
        if rank == 1 and step == 1:
            os._exit(1)
        try:
            model(torch.randn(2, 8)).sum().backward()
            if device == "cuda":
                torch.cuda.synchronize()
        except RuntimeError:
            os._exit(RAISED)
    os._exit(0)


@pytest.mark.distributed
def test_the_other_one_raises(device: str, tmp_path: Path) -> None:
    if reason := unable(2, device):
        pytest.skip(reason)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformer_kernels", __name__])
    meeting = str(tmp_path / "meeting")
    ranks = [context.Process(target=_train, args=(rank, meeting, device)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(600)
    assert [process.exitcode for process in ranks] == [RAISED, 1]
