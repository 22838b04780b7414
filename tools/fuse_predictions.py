#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Predicts the times of sites of the models in tests/python/fuse/zoo, and measures them.

    fuse_predictions.py benchmarks/results/MACHINE_fused_predictions.json [--models llama,t5]

The models are 4 and 8 times as wide as in the tests. Each starts with an empty table of the
machine. Rows of other models stay in the file. Memory that is freed is kept, as in a process that
has run for a while.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from setup_env import ROOT
from transformer_kernels.bench import predictions
from transformer_kernels.fuse import plan
from transformer_kernels.fuse.site import Site
from transformer_kernels.measure import machine
from transformer_kernels.measure.heap import Heap
from transformer_kernels.measure.schema import PredictedRow, load, save

sys.path.insert(0, str(ROOT / "tests" / "python" / "fuse"))
FAMILIES: dict[str, Any] = import_module("zoo.families").BY_NAME

TIMES = (4, 8)
BATCH, TOKENS = 8, 64
WIDTHS = frozenset((
    "d_ff", "d_kv", "d_model", "decoder_ffn_dim", "embed_dim", "encoder_ffn_dim", "ffn_dim",
    "ffn_hidden_size", "head_dim", "hidden_size", "intermediate_size", "moe_intermediate_size",
    "n_embd", "query_pre_attn_scalar", "word_embed_proj_dim",
))  # fmt: skip
NARROW = ("nn encoder", "nn decoder")  # whose width is not an option


def widened(family: Any, times: int) -> Any:
    """The family with layers so many times as wide."""
    *others, options = family.make.args
    wide = {name: value * times if name in WIDTHS else value for name, value in options.items()}
    make = functools.partial(family.make.func, *others, wide)
    return dataclasses.replace(family, make=make)


def rows_of(model: str, site: Site) -> Iterator[PredictedRow]:
    assert site.predicted is not None
    passes = (("both", site.training, site.predicted.training),
              ("forward", site.inference, site.predicted.inference))  # fmt: skip
    for pass_, measured, predicted in passes:
        if measured is not None and predicted is not None:
            yield PredictedRow(model, site.pattern, pass_, *measured, *predicted)


def predicted(family: Any, times: int) -> list[PredictedRow]:
    """The rows of a family: each distinct site once."""
    made: Any = plan(widened(family, times).build(), family.inputs(BATCH, TOKENS), predict=True)
    kinds = {(site.pattern, site.key): site for site in (*made.sites, *made.declined)}
    name = f"{family.name} x{times}"
    return [row for site in kinds.values() if site.predicted for row in rows_of(name, site)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--models", help="of these alone; default: all")
    options = parser.parse_args()
    names = options.models.split(",") if options.models else [*FAMILIES]
    torch.set_num_threads(1)
    Heap().choose("reused")
    found: dict[str, list[PredictedRow]] = {}
    if options.result.exists():
        for row in load(options.result).predictions:
            found.setdefault(row.model, []).append(row)
    for name in names:
        for times in TIMES if name not in NARROW else ():
            with tempfile.TemporaryDirectory() as folder:
                os.environ["TFK_FUSE_FILE"] = str(Path(folder) / "fuse.json")
                found[f"{name} x{times}"] = predicted(FAMILIES[name], times)
    rows = [row for group in found.values() for row in group]
    settings = {"threads": "1", "batch": str(BATCH), "tokens": str(TOKENS)}
    result = machine.new_result(torch.device("cpu"), settings=settings, predictions=rows)
    save(result, options.result)
    print(predictions.render(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
