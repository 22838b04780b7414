# SPDX-License-Identifier: MIT
"""The traffic of attention's kernels beyond caches of several sizes and policies, simulated once
and stored: it takes minutes, and any machine finds the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_kernels.hardware.proposals import cache, traces
from transformer_kernels.measure.schema import SchemaError

MEBIBYTE = 1 << 20
PROCESSORS = 132  # of the H100 and the H200
L2 = 50  # MiB of these cards
SIZES = (12, 25, L2, 100)  # MiB
WAYS = 16
SECTIONS = (1, 2, 4, 8)  # heads whose tiles are mixed, in the place of a kernel's own rule
VERSION = 1
_ONE_IN = 64  # lines that are simulated

GROUPED = traces.Problem(4, 4096, 32, 8, 128, causal=True)
_PROBLEMS = (
    traces.Problem(4, 4096, 32, 32, 64, causal=True),
    traces.Problem(4, 4096, 16, 16, 128, causal=True),
    GROUPED,
    traces.Problem(4, 4096, 16, 16, 128, causal=False),
)
_DECODES = (
    traces.Decode(32, 8192, 4096, 32, 8, 128),
    traces.Decode(8, 4096, 0, 32, 8, 128, steps=3),
)
# Bits of an address choose the set, or a hash does: a problem small enough for every line.
_WHOLE = traces.Problem(1, 2048, 16, 16, 128, causal=True)
_WHOLE_SIZE, _WHOLE_WAYS = 12, (2, 4, 8, 16)


@dataclass(frozen=True)
class Traffic:
    """A pass of a problem through a cache.

    Args:
        pass_: "forward", "backward" or "decode".
        section: heads whose tiles are mixed; 0 where the kernel's own rule decides.
        hits: the share of accesses.
        bytes: from and to memory.
        least: bytes that any cache moves.
    """

    problem: str
    pass_: str
    section: int
    policy: str
    mebibytes: int
    ways: int
    hashed: bool
    hits: float
    bytes: int
    least: int


def simulated() -> Iterator[Traffic]:
    """Runs every simulation; minutes of one core."""
    for problem in _PROBLEMS:
        for pass_, tiles in (("forward", traces.forward), ("backward", traces.backward)):
            trace = traces.traced(tiles(problem), PROCESSORS, cache.sample(_ONE_IN))
            yield from _sizes(trace, problem, pass_, 0, SIZES)
    for step in _DECODES:
        trace = traces.traced(traces.decode(step), PROCESSORS, cache.sample(_ONE_IN))
        yield from _sizes(trace, step, "decode", 0, SIZES)
    yield from _sections()
    yield from _indices()


def _sizes(
    trace: cache.Trace, problem: traces.Problem | traces.Decode, pass_: str, section: int,
    sizes: Sequence[int], policies: Sequence[str] = tuple(cache.POLICIES),
) -> Iterator[Traffic]:  # fmt: skip
    least = cache.least(trace) * _ONE_IN
    for size in sizes:
        held = cache.Cache.of_bytes(size * MEBIBYTE, WAYS, one_in=_ONE_IN)
        for policy in policies:
            found = cache.simulate(trace, held, policy)
            yield Traffic(
                str(problem), pass_, section, policy, size, WAYS, True,
                found.hits / found.accesses, found.bytes * _ONE_IN, least,
            )  # fmt: skip


def _sections() -> Iterator[Traffic]:
    """Software can do this: the backward pass with other orders of its tiles."""
    for section in SECTIONS:
        problem = traces.Problem(**{**asdict(GROUPED), "section": section})
        trace = traces.traced(traces.backward(problem), PROCESSORS, cache.sample(_ONE_IN))
        yield from _sizes(trace, problem, "backward", section, (L2,), ("hints",))


def _indices() -> Iterator[Traffic]:
    trace = traces.traced(traces.forward(_WHOLE), PROCESSORS)
    least = cache.least(trace)
    for ways in _WHOLE_WAYS:
        for hashed in (False, True):
            held = cache.Cache.of_bytes(_WHOLE_SIZE * MEBIBYTE, ways, hashed)
            found = cache.simulate(trace, held, "lru")
            yield Traffic(
                str(_WHOLE), "forward", 0, "lru", _WHOLE_SIZE, ways, hashed,
                found.hits / found.accesses, found.bytes, least,
            )  # fmt: skip


def save(found: Sequence[Traffic], path: Path) -> None:
    """Writes a line for each simulation."""
    rows = ",\n".join(f"  {json.dumps(asdict(one))}" for one in found)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"version": {VERSION}, "rows": [\n{rows}\n]}}\n')


def load(path: Path) -> list[Traffic]:
    """Reads what :func:`save` wrote.

    Raises:
        SchemaError: the file is of another version.
    """
    stored = json.loads(path.read_text())
    if stored.get("version") != VERSION:
        raise SchemaError(
            f"{path}: version is {stored.get('version')}, expected {VERSION}; "
            "`transformer-kernels proposals --simulate` writes it"
        )
    return [Traffic(**row) for row in stored["rows"]]
