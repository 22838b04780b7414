# SPDX-License-Identifier: MIT
"""One module per op, named <family>_<op>; a new module is found without being listed."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from transformer_kernels.measure.case import Case


@lru_cache(maxsize=1)
def all_ops() -> dict[str, Case]:
    """Every op by its name."""
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name[0] != "_")
    loaded = [importlib.import_module(f"{__name__}.{name}") for name in modules]
    return {op.name: op for module in loaded for op in module.OPS}


def select(names: list[str]) -> list[Case]:
    """The ops of these names, keys (`norm/rms_norm`) or families (`norm`); all where none.

    Features of an op (`softcap_attention`) come by their names alone.
    """
    ops = list(all_ops().values())
    unknown = [n for n in names if not any(_matches(op, n) for op in ops)]
    if unknown:
        known = ", ".join(op.name for op in ops)
        raise ValueError(f"unknown op {unknown[0]!r}, expected one of {known}, a key or a family")
    if not names:
        return [op for op in ops if not op.feature]
    return [op for op in ops if any(_matches(op, name) for name in names)]


def _matches(op: Case, name: str) -> bool:
    family = op.key.partition("/")[0]
    names = {op.name, f"{family}/{op.name}"}
    return name in (names if op.feature else {*names, op.key, family})
