# SPDX-License-Identifier: MIT
"""Times training steps of a Hugging Face model in turn, or its forward passes: stock, compiled by
torch.compile, compiled with this package's backend, fused by one call of `tfk.fuse`, and with
Liger's kernels where that package is installed and knows the model.

$ transformer-kernels race llama --providers stock,fused --json llama.json
$ transformer-kernels race llama --inference --batch 1 --seq-len 8192
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping

import torch

from transformer_kernels.bench import families, race
from transformer_kernels.bench.families import FAMILIES, GRAPHS, LIGER, PROVIDERS, Family, Size
from transformer_kernels.bench.options import (
    add_device,
    add_outputs,
    keep,
    names,
    pick_device,
    require_at_least,
    require_known,
)
from transformer_kernels.bench.rivals import liger_models
from transformer_kernels.bench.step import Task
from transformer_kernels.measure.schema import Skip
from transformer_kernels.measure.table import skipped_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", choices=tuple(FAMILIES), help="the family of models")
    add_device(parser)
    parser.add_argument(
        "--full", action="store_true",
        help="the size of a published model, as on a GPU by default: GPT-2 124M or 355M,"
        " BERT-large or BERT-base, Llama-3.2-1B, Qwen3-0.6B, ViT-L/16",
    )  # fmt: skip
    parser.add_argument(
        "--inference", action="store_true",
        help="times a forward pass instead of a step of training, in evaluation mode and without"
        " gradients, with bfloat16 parameters on a GPU; causal models give the logits of the last"
        " token",
    )  # fmt: skip
    parser.add_argument(
        "--pure-bf16", action="store_true",
        help="parameters in bfloat16, without autocast (float32 by default, on a GPU with autocast"
        " to bfloat16)",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=int, metavar="N", help="sequences or images in a step or pass"
    )
    parser.add_argument("--seq-len", type=int, metavar="N", help="tokens in a sequence")
    parser.add_argument("--layers", type=int, metavar="N", help="fewer or more of the model's")
    parser.add_argument(
        "--providers", metavar="NAMES",
        help=f"what is timed, of {','.join(PROVIDERS)}; all by default, {LIGER} where it can run",
    )  # fmt: skip
    parser.add_argument("--skip-logits", action="store_true",
                        help="the fused model computes its loss without the logits")  # fmt: skip
    parser.add_argument("--residual-in-16-bits", action="store_true",
                        help="the fused model's norms give autocast's dtype")  # fmt: skip
    parser.add_argument(
        "--graphs", action="store_true",
        help="also times the fused model whose blocks are replayed as CUDA graphs",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=25, help="steps of each model that are timed")
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    import transformers

    transformers.logging.set_verbosity_error()
    require_at_least("--rounds", arguments.rounds, 1)
    device = pick_device(arguments.device)
    family = FAMILIES[arguments.model]
    providers, skipped = _providers(arguments, family, device)
    size = family.full if arguments.full or device.type == "cuda" else family.small
    size = dataclasses.replace(size, **_changes(arguments, size))
    options = _options(arguments)
    served = arguments.inference and device.type == "cuda"
    dtype = torch.bfloat16 if arguments.pure_bf16 or served else torch.float32
    task = families.task(
        family, size, providers, device, options, not arguments.inference, dtype, arguments.quiet
    )
    measured = race.measure(task, device, arguments.rounds, arguments.quiet)
    settings = _settings(family, size, task, dtype, device, options)
    result = dataclasses.replace(measured, settings=settings, skipped=skipped)
    print("\n".join([race.render(result), *skipped_lines(result)]))
    keep(result, arguments)
    return 0


def _providers(
    arguments: argparse.Namespace, family: Family, device: torch.device
) -> tuple[list[str], list[Skip]]:
    """The providers that are timed, and those of the default that cannot run here."""
    absent = liger_models.why_absent(family.kind, device)
    skipped = []
    if arguments.providers is None:
        providers = [name for name in PROVIDERS if name != LIGER or absent is None]
        skipped = [] if absent is None else [Skip(family.title, LIGER, absent)]
    else:
        providers = names(arguments.providers)
        require_known("--providers", providers, PROVIDERS)
        if LIGER in providers and absent is not None:
            raise ValueError(f"--providers has {LIGER!r}, but: {absent}")
    return [*providers, GRAPHS] if arguments.graphs else providers, skipped


def _options(arguments: argparse.Namespace) -> dict[str, bool]:
    """The options of `fuse`; one that would change nothing is refused."""
    if arguments.skip_logits and arguments.inference:
        raise ValueError("--skip-logits is for training: a forward pass has no loss")
    if arguments.residual_in_16_bits and (arguments.inference or arguments.pure_bf16):
        raise ValueError("--residual-in-16-bits is for training under autocast")
    return {
        "skip_logits": arguments.skip_logits,
        "residual_in_fp32": not arguments.residual_in_16_bits,
    }


def _changes(arguments: argparse.Namespace, size: Size) -> dict[str, int]:
    """The dimensions that were asked for, by the names of `Size`."""
    if size.image and arguments.seq_len is not None:
        raise ValueError(f"--seq-len is for text, but {arguments.model} is given images")
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
    family: Family,
    size: Size,
    task: Task,
    dtype: torch.dtype,
    device: torch.device,
    options: Mapping[str, bool],
) -> dict[str, str]:
    settings = {"model": f"{family.title}, {size}", "batch": size.batch_text}
    if task.recipe.trains:
        settings["dropout"] = f"dropout {family.dropout:g}"
    else:
        settings["pass"] = race.FORWARD
    if "logits_to_keep" in task.batch:
        settings["logits"] = "logits of the last token"
    if options["skip_logits"]:
        settings["logits"] = "fused without logits"
    if not options["residual_in_fp32"]:
        settings["residual"] = "fused with residuals of 16 bits"
    if dtype == torch.bfloat16:
        settings["dtype"] = "bfloat16 parameters"
    elif device.type == "cuda":
        settings["dtype"] = "bfloat16 autocast"
    if device.type == "cpu":
        settings["threads"] = f"{torch.get_num_threads()} threads"
    return settings
