# SPDX-License-Identifier: MIT
"""Runs the demo: the training, the ops and the page, or one of the other two measurements."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from typing import Any

import torch

from transformer_kernels.bench import cases, race, report, runner, step, summary
from transformer_kernels.bench.options import pick_device, write_plots
from transformer_kernels.bench.training import Recipe
from transformer_kernels.demo import answer, search, show
from transformer_kernels.demo.kinds import DROPOUT, SEED, Kind
from transformer_kernels.demo.size import BYTES, OPTIONS, TOKENS, Size
from transformer_kernels.demo.train import agreement, batches, train
from transformer_kernels.generation import chat
from transformer_kernels.measure import busy, schema, sweeps, table
from transformer_kernels.measure.case import Case
from transformer_kernels.measure.schema import Result, Training
from transformer_kernels.testing import pretrained

_TRAIN_SECONDS, _BENCH_SECONDS = 100, 75  # at most, so that a slow machine ends too
# Compiling for a CPU would take longer than the rest of the demo.
_CPU_PROVIDERS = ("torch", "ours")
_GPU_PROVIDERS = ("torch", "compile", "triton", "ours")
_SIZES = {
    "cpu": Size(4, 192, 4, block=128, batch=8, steps=120, learning_rate=2e-3),
    "cuda": Size(12, 768, 12, block=512, batch=8, steps=200, learning_rate=6e-4),
}
_GPT2 = Size(12, 768, 12, block=1024, batch=16, steps=200, learning_rate=6e-4)
_QUICK = Size(2, 64, 2, block=64, batch=4, steps=6, learning_rate=3e-3)
_FULL = 3  # times the steps
_QUICK_TOKENS, _TOKENS = 12, 96  # of a trained model's answer
_QUICK_PARAGRAPHS, _PARAGRAPHS = 12, 192  # of the documentation to search; the full form takes all

# The ops that most models have come first; the others follow.
_FIRST = (
    "attention", "causal_attention", "layer_norm", "rms_norm", "add_rms_norm", "softmax",
    "cross_entropy", "linear_cross_entropy", "gelu", "swiglu", "bias_dropout_add_layer_norm",
    "rope", "linear", "linear_act", "gated_linear", "embedding",
)  # fmt: skip
# Weights of 4 bits are for decoding; nobody trains through them a row at a time.
_LEFT_OUT = (("quantized_linear", "backward"),)


def run(arguments: argparse.Namespace, kind: Kind) -> int:
    device = pick_device(arguments.device)
    size = _size(arguments, device)
    if arguments.profile or arguments.race:
        return _measure_step(kind, size, device, arguments)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when the profiler first starts
    begin = time.perf_counter()
    watch = busy.Watch(device)
    watch.sample()
    print(f"{kind.title}, {size}; bytes of Python's documentation, {size.batch}x{size.block} a"
          " step", flush=True)  # fmt: skip
    models = {name: kind.build(size, BYTES) for name in ("stock", "stock again")}
    models["ours"] = _ours(kind, size, BYTES, next(batches(size, device)))
    watch.sample()
    if (reason := watch.signs().reason) is not None:
        print(show.busy_words(reason), flush=True)
    runs = train(models, size, device, kind.loss_of, math.inf if arguments.full else _TRAIN_SECONDS)
    training = Training(f"{kind.title}, {size}", runs)
    watch.sample()
    reason = watch.signs().reason
    print(f"\n{show.headline(training, reason)}\n")
    if len(training.stock.losses) < size.steps:
        print(f"{show.ended_early(training, size.steps)}\n")
    print(show.outcome(training, size, reason))
    print(show.curves(training))
    print(f"\n{show.agreement(agreement(models['ours'], kind, size, device))}\n", flush=True)
    if arguments.profile_memory:
        print(f"{show.memory(_peaks(kind, size, device))}\n", flush=True)

    print(f"{_search(device, arguments, reason)}\n", flush=True)
    print(f"{_answer(device, arguments, reason)}\n", flush=True)
    result = dataclasses.replace(runner.run(_bench_settings(device, arguments)), training=training)
    assert result.ceilings is not None
    watch.add(result.ceilings.copy_gbps)
    watch.sample()
    result = _told_busy(result, reason or watch.signs().reason)
    _show_ops(result)
    report.write(result, arguments.output)
    if arguments.json:
        schema.save(result, arguments.json)
    if arguments.plot:
        write_plots(result, arguments.plot)
    print(f"\n{show.headline(training, result.busy)}")
    print(f"wrote {arguments.output} after {time.perf_counter() - begin:.0f} s")
    return 0


def _size(arguments: argparse.Namespace, device: torch.device) -> Size:
    size = _QUICK if arguments.quick else _SIZES[device.type]
    if arguments.full:
        size = dataclasses.replace(size, steps=_FULL * size.steps)
    given = {field: value for _, field, _ in OPTIONS if (value := getattr(arguments, field))}
    for option, field, _ in OPTIONS:
        value = getattr(arguments, field)
        if value is not None and value < 1:
            raise ValueError(f"{option} is {value}, expected at least 1")
    size = dataclasses.replace(size, **given)
    if size.top_k > size.experts:
        raise ValueError(f"--top-k is {size.top_k}, expected at most --num-experts"
                         f" ({size.experts})")  # fmt: skip
    if not {"experts", "top_k"}.isdisjoint(given) and arguments.model != "mixtral":
        raise ValueError(f"--model is {arguments.model}, expected mixtral (--num-experts and"
                         " --top-k are of a mixture)")  # fmt: skip
    if size.width % size.heads:
        raise ValueError(f"--d-model is {size.width}, expected a multiple of --num-heads"
                         f" ({size.heads})")  # fmt: skip
    return size


def _search(device: torch.device, arguments: argparse.Namespace, busy: str | None) -> str:
    """Searches the documentation with a trained model, where it is installed; the words on it."""
    stock = pretrained.minilm()
    if stock is None:
        return show.no_search(pretrained.INSTALL)
    stock.model.to(device)
    most = _QUICK_PARAGRAPHS if arguments.quick else _PARAGRAPHS
    entries = search.paragraphs(None if arguments.full else most)
    encoders, _ = search.with_fused(stock, entries)
    return show.search(search.search(encoders, entries, search.QUESTIONS), busy)


def _answer(device: torch.device, arguments: argparse.Namespace, busy: str | None) -> str:
    """Has SmolLM2 answer a question, where it is installed; the words on it."""
    try:
        path = chat.default_model()
    except ValueError as error:
        return f"No text of a trained model: {error}"
    count = _QUICK_TOKENS if arguments.quick else _TOKENS
    return show.answer(answer.QUESTION, answer.answer(path, device, count), busy)


def _told_busy(result: Result, reason: str | None) -> Result:
    if reason is None:
        return result
    return dataclasses.replace(result, settings={**result.settings, "busy": reason})


def _show_ops(result: Result) -> None:
    if (means := summary.render(result)) is not None:
        print(f"{means}\n")
    if result.busy is not None:
        print(f"\n{show.busy_words(result.busy)}\n")
    print(table.render(result))
    for line in table.skipped_lines(result):
        print(line)


def _bench_settings(device: torch.device, arguments: argparse.Namespace) -> runner.Settings:
    ops = sorted(cases.select([]), key=_place)

    def shapes(op: Case, _: torch.dtype) -> list[sweeps.Shape]:
        found = op.grid.shapes_of(["quick"], device, torch.float32)
        if arguments.full:
            return found
        return found[:1] if arguments.quick else found[len(found) // 2 :][:1]

    return runner.Settings(
        ops=ops,
        passes=("forward", "backward"),
        dtypes=(torch.float32,) if arguments.quick else (torch.float32, torch.bfloat16),
        shapes=shapes,
        device=device,
        providers=_GPU_PROVIDERS if device.type == "cuda" else _CPU_PROVIDERS,
        seconds=0.05 if arguments.quick else 0.2,
        budget_seconds=_budget(arguments),
        find_kernels=False,
        left_out=_LEFT_OUT,
    )


def _budget(arguments: argparse.Namespace) -> float | None:
    if arguments.full:
        return None
    return 8 if arguments.quick else _BENCH_SECONDS


def _place(op: Case) -> int:
    return _FIRST.index(op.name) if op.name in _FIRST else len(_FIRST)


def _ours(kind: Kind, size: Size, vocabulary: int, batch: torch.Tensor) -> Any:
    """A model with our kernels, which were chosen on the device of the batch, in training."""
    model = kind.build(size, vocabulary).to(batch.device).train()
    kind.put_in(model, batch)
    return model


# ---- a step -------------------------------------------------------------------------------------


def _task(
    kind: Kind, size: Size, vocabulary: int, batch: torch.Tensor, more: dict[str, Any]
) -> step.Task:
    """The models that take the same step: stock, those of ``more``, and ours."""
    ours = _ours(kind, size, vocabulary, batch)
    return step.Task(
        models={"stock": kind.build(size, vocabulary), **more, "ours": ours},
        batch=batch,
        loss_of=kind.loss_of,
        recipe=Recipe(size.steps, size.learning_rate),
        tokens=size.block,
    )


def _peaks(kind: Kind, size: Size, device: torch.device) -> dict[str, int]:
    return race.peaks(_task(kind, size, BYTES, next(batches(size, device)), {}), device)


def _measure_step(
    kind: Kind, size: Size, device: torch.device, arguments: argparse.Namespace
) -> int:
    """Times steps of the model of that size. A GPU, except in the short form, gets GPT-2's 124
    million parameters and autocast, as it is trained."""
    if device.type == "cuda" and not arguments.quick:
        size, vocabulary = _GPT2, TOKENS
        model = f"{kind.title}, {size} and its vocabulary"
        torch.manual_seed(SEED)
        batch = torch.randint(vocabulary, (size.batch, size.block), device=device)
    else:
        model, vocabulary = f"{kind.title}, {size}", BYTES
        batch = next(batches(size, device))
    more = {}
    if arguments.race:
        more["compiled"] = torch.compile(kind.build(size, vocabulary))
    task = _task(kind, size, vocabulary, batch, more)
    settings = {
        "model": model, "batch": f"batch {size.batch}x{size.block}",
        "dropout": f"dropout {DROPOUT:g}",
    }  # fmt: skip
    if device.type == "cuda":
        settings["dtype"] = "bfloat16 autocast"
    else:
        settings["threads"] = f"{torch.get_num_threads()} threads"
    measured = race if arguments.race else step
    result = dataclasses.replace(
        measured.measure(task, device, 3 if arguments.quick else 25), settings=settings
    )
    print(measured.render(result))
    if arguments.json is not None:
        schema.save(result, arguments.json)
    return 0
