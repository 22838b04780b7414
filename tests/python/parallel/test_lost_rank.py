# SPDX-License-Identifier: MIT
"""A rank that dies: the other one raises, and does not wait for ever."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh

from transformer_kernels.parallel import parallelize

RAISED = 7  # the exit status of a rank whose group failed
TIMEOUT = timedelta(minutes=2)  # ends a hang; a socket that is closed says so at once


def _train(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=TIMEOUT
    )
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))
    parallelize(model, init_device_mesh("cpu", (2,)), inputs=torch.randn(2, 8))
    for step in range(3):
        if rank == 1 and step == 1:
            os._exit(1)
        try:
            model(torch.randn(2, 8)).sum().backward()
        except RuntimeError:
            os._exit(RAISED)
    os._exit(0)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")
def test_the_other_one_raises(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformer_kernels", __name__])
    ranks = [
        context.Process(target=_train, args=(rank, str(tmp_path / "meeting"))) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(600)
    assert [process.exitcode for process in ranks] == [RAISED, 1]
