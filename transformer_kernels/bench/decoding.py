# SPDX-License-Identifier: MIT
"""The tables of `benchmarks/decode_step.py`, decoding on the CPU beside llama.cpp, and of
`benchmarks/generate.py`, prompts that are continued in batches."""

from __future__ import annotations

from transformer_kernels.measure.schema import DecodeRow, GenerateRow, Result
from transformer_kernels.measure.table import ABSENT, Table

_HEADINGS = [
    ("Model", 6), ("weights", 7), ("timed", 13), ("by", 23), ("tokens/s", 8), ("of llama.cpp", 12),
    ("of a read", 9), ("read GB/s", 9), ("barrier ns", 10),
]  # fmt: skip

_BATCHES = [
    ("Model", 12), ("batch", 5), ("by", 34), ("tokens/s", 9), ("with prompt", 11),
    ("of floor", 8), ("equal tokens", 12),
]  # fmt: skip


def render(result: Result) -> str:
    return str(lay_out_batches(result) if result.generating else lay_out(result))


def lay_out(result: Result) -> Table:
    """A line for each way to decode. "of a read" compares with one read of the packed weights."""
    threads = result.settings["threads"]
    title = f"DECODING ONE SEQUENCE ({result.machine.device_name})"
    subtitle = f"medians of rounds in which all take turns, {threads} threads"
    return Table(title, subtitle, _HEADINGS, [_cells(row) for row in result.decoding])


def lay_out_batches(result: Result) -> Table:
    """A line for each way to continue prompts. "of floor" compares with a copy of as many bytes as
    the weights and the cache have."""
    settings = result.settings
    title = f"CONTINUING PROMPTS ({result.machine.device_name})"
    subtitle = (
        f"{settings['dtype']}, greedy, {settings['new']} tokens behind {settings['prompt']};"
        f" medians of {settings['rounds']} rounds in which all take turns"
    )
    return Table(title, subtitle, _BATCHES, [_batch_cells(row) for row in result.generating])


def _batch_cells(row: GenerateRow) -> list[str]:
    return [
        row.model, str(row.batch), row.provider, f"{row.tokens_per_second:,.0f}",
        f"{row.whole_per_second:,.0f}", f"{row.of_floor:.1%}", f"{row.equal:.0%}",
    ]  # fmt: skip


def _cells(row: DecodeRow) -> list[str]:
    return [
        row.model, row.weights, f"prompt of {row.prompt}" if row.prompt else "single tokens",
        row.provider, f"{row.tokens_per_second:.1f}", _ratio(row.of_llama), _ratio(row.of_floor),
        f"{row.floor_gbps:.1f}", f"{row.barrier_ns:.0f}",
    ]  # fmt: skip


def _ratio(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{ratio:.2f}x"
