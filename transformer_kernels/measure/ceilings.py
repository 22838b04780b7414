# SPDX-License-Identifier: MIT
"""The limits of the machine: the bandwidth of a large copy, and the rate of a matrix product."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import torch
from torch import Tensor

from transformer_kernels.measure.case import dtype_name
from transformer_kernels.measure.schema import Ceilings
from transformer_kernels.measure.timing import Call, Timer, interleave

_COPY_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}
_MATMUL_SIZE = {"cpu": 1024, "cuda": 8192}
_MATMUL_DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}
_SECONDS = 0.5
_FEW_ROUNDS = 5  # of a copy that is measured for a moment
# A shared CPU: calls so short that some are undisturbed, and enough of them to find the fastest.
_LEAST_BYTES, _LEAST_MATMUL, _LEAST_ROUNDS = 16 << 20, 512, 100


def _copy(source: Tensor, target: Tensor) -> Tensor:
    return target.copy_(source)


def _elementwise(source: Tensor, target: Tensor) -> Tensor:
    return torch.neg(source, out=target)


# On a GPU `copy_` is cudaMemcpyAsync, which is not the fastest copy at every size.
_VARIANTS: dict[str, dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "cpu": {"copy_": _copy},
    "cuda": {"copy_": _copy, "elementwise": _elementwise},
}


def copy_variants(device: torch.device) -> tuple[str, ...]:
    return tuple(_VARIANTS[device.type])


def copy_calls(bytes_moved: int, sets: int, device: torch.device) -> Mapping[str, list[Call]]:
    """Copies that together read and write `bytes_moved`, between tensors that are allocated
    already."""
    count = max(1, bytes_moved // 2 // torch.float32.itemsize)
    pairs: list[tuple[Tensor, Tensor]] = []
    for _ in range(sets):
        source = torch.randn(count, device=device)
        pairs.append((source, torch.zeros_like(source)))
    return {
        name: [partial(variant, *pair) for pair in pairs]
        for name, variant in _VARIANTS[device.type].items()
    }


def measure_ceilings(
    timer: Timer, device: torch.device, computed: Collection[torch.dtype] = (), least: bool = False
) -> Ceilings:
    """Measures a copy, and matrix products in the device's own dtype and in those of ``computed``.

    Rates come from medians, or with ``least`` from 10th percentiles, for comparison with other 10th
    percentiles.
    """
    bytes_moved, size, rounds = _COPY_BYTES[device.type], _MATMUL_SIZE[device.type], None
    if least and device.type == "cpu":
        bytes_moved, size, rounds = _LEAST_BYTES, _LEAST_MATMUL, _LEAST_ROUNDS
    copies = copy_calls(bytes_moved, 1, device)
    main = _MATMUL_DTYPE[device.type]
    products = {dtype_name(d): _product(size, d, device) for d in {main, *computed}}
    watches = {name: timer.stopwatch(calls) for name, calls in {**copies, **products}.items()}
    found = interleave(watches, timer, _SECONDS, rounds)
    times = {name: s.p10 if least else s.median for name, s in found.items()}
    tflops = {name: 2 * size**3 / times[name] / 1e6 for name in products}
    return Ceilings(
        copy_gbps=bytes_moved / min(times[name] for name in copies) / 1e3,
        copy_bytes=bytes_moved,
        matmul_tflops=tflops.pop(dtype_name(main)),
        matmul_size=size,
        matmul_dtype=dtype_name(main),
        products=tflops,
    )


def measure_copy(timer: Timer, device: torch.device) -> float:
    """Measures a copy for a moment; returns its GB/s."""
    bytes_moved = _COPY_BYTES[device.type]
    calls = copy_calls(bytes_moved, 1, device)
    watches = {name: timer.stopwatch(copies) for name, copies in calls.items()}
    found = interleave(watches, timer, _SECONDS, _FEW_ROUNDS)
    return bytes_moved / min(summary.median for summary in found.values()) / 1e3


def _product(size: int, dtype: torch.dtype, device: torch.device) -> list[Call]:
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return [partial(torch.matmul, a, b)]
