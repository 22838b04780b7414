# SPDX-License-Identifier: MIT
"""Lists what the other commands take: ops, passes, providers, dtypes, sweeps and levels.

$ transformer-kernels list
"""

from __future__ import annotations

import argparse

from transformer_kernels.bench import cases
from transformer_kernels.bench.commands.bench import HOST
from transformer_kernels.bench.options import DTYPES
from transformer_kernels.bench.providers import PROVIDERS
from transformer_kernels.levels import LEVELS
from transformer_kernels.measure.case import PASSES
from transformer_kernels.measure.sweeps import SWEEPS


def add_arguments(_: argparse.ArgumentParser) -> None:
    pass


def run(_: argparse.Namespace) -> int:
    keys = {op.name: op.key for op in cases.all_ops().values()}
    rows = {
        "passes": PASSES, "providers": PROVIDERS, "dtypes": DTYPES, "sweeps": SWEEPS,
        "levels": tuple(LEVELS), HOST: ("host time of one eager call",),
    }  # fmt: skip
    print("ops")
    print(_columns({f"  {name}": key for name, key in keys.items()}))
    print(_columns({name: ", ".join(values) for name, values in rows.items()}))
    return 0


def _columns(rows: dict[str, str]) -> str:
    width = max(map(len, rows)) + 2
    return "\n".join(f"{name:<{width}}{text}" for name, text in rows.items())
