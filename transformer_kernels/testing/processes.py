# SPDX-License-Identifier: MIT
"""Test cases that several processes run together, each in its place of one process group: of gloo
on the CPU, or of NCCL, where each process has a card of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.multiprocessing.spawn import ProcessRaisedException, start_processes

from .programs import leave
from .tolerance import NearMissError

# None of them asks for a CUDA device: a process that is forked from one that did has none.
_PRELOADED = [
    "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.tensor",
    "transformer_kernels.testing.attention",
]  # fmt: skip
TIMEOUT = timedelta(minutes=3)  # ends a hang; no test waits for it


def unable(world: int, device: str) -> str | None:
    """Says why ``world`` processes cannot meet on devices of this type here; None where they can.

    Counting cards makes no CUDA context.
    """
    if not dist.is_available():
        return "PyTorch was built without torch.distributed"
    if device == "cpu":
        return None if dist.is_gloo_available() else "PyTorch was built without gloo"
    if not dist.is_nccl_available():
        return "PyTorch was built without NCCL"
    cards = torch.cuda.device_count()
    return None if cards >= world else f"{world} processes take a card each, and there are {cards}"


def device() -> torch.device:
    """The device of this process: its card, or the CPU. Tensors of cases are made there, unless
    another device is named."""
    return torch.get_default_device()


def meet(
    rank: int,
    world: int,
    meeting: Path | str,
    device: str = "cpu",
    timeout: timedelta | None = None,
) -> None:
    """Joins the process group of a test, on the process's own device.

    With a timeout of its own the host waits for NCCL, and raises what went wrong: otherwise a
    watchdog would end the process.
    """
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # where ranks of one machine find each other
    card = torch.device("cuda", rank) if device == "cuda" else None
    if card is not None:
        torch.cuda.set_device(card)
        torch.set_default_device(card)
    if timeout is not None:
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    dist.init_process_group(
        "gloo" if card is None else "nccl", init_method=f"file://{meeting}", rank=rank,
        world_size=world, timeout=timeout or TIMEOUT, device_id=card,
    )  # fmt: skip


def run_together(
    cases: Sequence[Callable[[], None]],
    world: int,
    folder: Path,
    device: str = "cpu",
    timeout: timedelta | None = None,
) -> None:
    """Runs functions of a module in ``world`` processes of one group, one after the other, each
    with the random numbers of one seed in all processes.

    The processes are forked from one that has imported what cases need: that takes longer than all
    of them.

    Raises:
        NearMissError: a case raised it, whose numbers are to be drawn once more.
        ProcessRaisedException: a case raised something else.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    try:
        start_processes(
            _process,
            (cases, world, str(folder / "meeting"), torch.initial_seed(), device, timeout),
            nprocs=world, start_method="forkserver",
        )  # fmt: skip
    except ProcessRaisedException as error:  # of what was raised there is text alone
        if f"\n{NearMissError.__module__}.{NearMissError.__name__}: " in str(error):
            raise NearMissError(str(error)) from None
        raise


def _process(
    rank: int,
    cases: Sequence[Callable[[], None]],
    world: int,
    meeting: str,
    seed: int,
    device: str,
    timeout: timedelta | None,
) -> None:
    meet(rank, world, meeting, device, timeout)
    for case in cases:
        torch.manual_seed(seed)
        try:
            case()
        except BaseException as error:
            kind = NearMissError if isinstance(error, NearMissError) else AssertionError
            raise kind(f"{case.__name__} in process {rank}: {error}") from error
    dist.barrier()  # none goes while another's messages are on their way
    if device == "cuda":
        torch.cuda.synchronize()
    dist.destroy_process_group()
    leave()
