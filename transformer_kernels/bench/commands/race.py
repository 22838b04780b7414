# SPDX-License-Identifier: MIT
"""Times training steps of a Hugging Face model in turn: stock, compiled by torch.compile, compiled
with this package's backend, and fused by one call of `tfk.fuse`.

$ transformer-kernels race llama --providers stock,fused --json llama.json
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping

import torch

from transformer_kernels.bench import families, race
from transformer_kernels.bench.families import FAMILIES, GRAPHS, PROVIDERS, Family, Size
from transformer_kernels.bench.options import (
    add_device,
    add_outputs,
    keep,
    names,
    pick_device,
    require_at_least,
    require_known,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", choices=tuple(FAMILIES), help="the family of models")
    add_device(parser)
    parser.add_argument(
        "--full", action="store_true",
        help="the size of a published model, as on a GPU by default: GPT-2 124M, BERT-large,"
        " Llama-3.2-1B, Qwen3-0.6B",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, metavar="N", help="sequences in a step")
    parser.add_argument("--seq-len", type=int, metavar="N", help="tokens in a sequence")
    parser.add_argument("--layers", type=int, metavar="N", help="fewer or more of the model's")
    parser.add_argument(
        "--providers", default=",".join(PROVIDERS), metavar="NAMES", help="what is timed"
    )
    parser.add_argument("--skip-logits", action="store_true",
                        help="the fused model computes its loss without the logits")  # fmt: skip
    parser.add_argument("--residual-in-16-bits", action="store_true",
                        help="the fused model's norms give autocast's dtype")  # fmt: skip
    parser.add_argument(
        "--graphs", action="store_true",
        help="also times the fused model whose blocks are replayed as CUDA graphs",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=25, help="steps of each model that count")
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    import transformers

    transformers.logging.set_verbosity_error()
    require_at_least("--rounds", arguments.rounds, 1)
    providers = names(arguments.providers)
    require_known("--providers", providers, PROVIDERS)
    if arguments.graphs:
        providers = [*providers, GRAPHS]
    device = pick_device(arguments.device)
    family = FAMILIES[arguments.model]
    size = family.full if arguments.full or device.type == "cuda" else family.small
    size = dataclasses.replace(size, **_changes(arguments))
    options = {
        "skip_logits": arguments.skip_logits,
        "residual_in_fp32": not arguments.residual_in_16_bits,
    }
    task = families.task(family, size, providers, device, options)
    settings = _settings(family, size, device, options)
    measured = race.measure(task, device, arguments.rounds, arguments.quiet)
    result = dataclasses.replace(measured, settings=settings)
    print(race.render(result))
    keep(result, arguments)
    return 0


def _changes(arguments: argparse.Namespace) -> dict[str, int]:
    """The dimensions that were asked for, by the names of `Size`."""
    asked = {
        "batch": ("--batch", arguments.batch),
        "tokens": ("--seq-len", arguments.seq_len),
        "layers": ("--layers", arguments.layers),
    }
    found = {name: pair for name, pair in asked.items() if pair[1] is not None}
    for option, value in found.values():
        require_at_least(option, value, 1)
    return {name: value for name, (_, value) in found.items()}


def _settings(
    family: Family, size: Size, device: torch.device, options: Mapping[str, bool]
) -> dict[str, str]:
    settings = {
        "model": f"{family.title}, {size}",
        "batch": f"batch {size.batch}x{size.tokens}",
        "dropout": f"dropout {family.dropout:g}",
    }
    if options["skip_logits"]:
        settings["logits"] = "fused without logits"
    if not options["residual_in_fp32"]:
        settings["residual"] = "fused with residuals of 16 bits"
    if device.type == "cuda":
        return {**settings, "dtype": "bfloat16 autocast"}
    return {**settings, "threads": f"{torch.get_num_threads()} threads"}
