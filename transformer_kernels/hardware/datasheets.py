# SPDX-License-Identifier: MIT
"""Cards by the data sheets of their maker, without sparsity.

A data sheet promises peaks: a copy reaches nine tenths of the bandwidth, and a product about eight
tenths of the rate. :func:`~transformer_kernels.hardware.like` turns the ratios of two sheets into
figures that another card would reach.
"""

from __future__ import annotations

from dataclasses import replace

from .description import Hardware

_EXPONENTIALS_A_CLOCK = 16  # of a streaming multiprocessor: its four special function units' rate
_GIGAHERTZ = 1.7  # of a card without a sheet
_LAUNCH_US = 2.0  # no sheet tells it: an empty kernel of a CUDA graph, on cards since Ampere


def _card(
    name: str, gbps: float, tflops: float, float32: float, processors: int, gigahertz: float
) -> Hardware:
    """A card with its bandwidth, its dense rates in 16 bits and in float32, its streaming
    multiprocessors and their boost clock."""
    return Hardware(
        name=name,
        copy_gbps=gbps,
        products={"bfloat16": tflops, "float32": float32},
        exponentials=processors * _EXPONENTIALS_A_CLOCK * gigahertz,
        units=processors,
        launch_us=_LAUNCH_US,
        origins={
            **dict.fromkeys(("copy_gbps", "products", "exponentials", "units"), "data sheet"),
            "launch_us": "assumed",
        },
    )


DATASHEETS = {
    "A100": _card("NVIDIA A100 80GB SXM", 2039, 312, 19.5, 108, 1.41),
    "L4": _card("NVIDIA L4", 300, 121, 30.3, 58, 2.04),
    "H100": _card("NVIDIA H100 SXM", 3350, 989.4, 66.9, 132, 1.98),
    "H200": _card("NVIDIA H200 SXM", 4800, 989.4, 66.9, 132, 1.98),
    "B200": _card("NVIDIA B200", 8000, 2250, 75, 148, 1.965),
}


def sheet_of(name: str) -> Hardware | None:
    """The data sheet of a card, by the name that its driver gives; None where there is none."""
    return next((sheet for key, sheet in DATASHEETS.items() if key in name), None)


def without_sheet(name: str, processors: int) -> Hardware:
    """A card of which only its streaming multiprocessors are known, with the rates of none."""
    card = _card(name, 0.0, 0.0, 0.0, processors, _GIGAHERTZ)
    return replace(card, products={}, origins=dict.fromkeys(card.origins, "assumed"))
