# SPDX-License-Identifier: MIT
"""The demo's words and tables."""

from __future__ import annotations

import textwrap

from transformer_kernels.bench.training import speed_up
from transformer_kernels.demo.answer import Answer
from transformer_kernels.demo.kinds import DROPOUT
from transformer_kernels.demo.search import (
    CHUNK,
    RANKED,
    Found,
    queries_per_second,
    same_rankings,
)
from transformer_kernels.demo.size import Size
from transformer_kernels.demo.train import Agreement
from transformer_kernels.measure import table
from transformer_kernels.measure.schema import Training, TrainingRun

_CURVE_LINES = 12


def headline(training: Training, busy: str | None) -> str:
    """The one number: how many tokens a second are trained, stock and with our kernels."""
    stock, ours = training.stock, training.runs[-1]
    line = (
        f"Training {training.model}: {stock.tokens_per_second:,.0f} tokens/s stock,"
        f" {ours.tokens_per_second:,.0f} with our kernels"
    )
    if busy is not None:
        return f"{line}; the machine was busy, which makes their ratio noise"
    ratio = _ratio(training, ours, busy)
    return line if ratio == table.ABSENT else f"{line}: {ratio}"


def ended_early(training: Training, steps: int) -> str:
    return f"The time for training was used up after {len(training.stock.losses)} of {steps} steps."


def busy_words(busy: str) -> str:
    return (
        f"THE MACHINE IS BUSY: {busy}. Ratios of times would be noise, so none is shown; run the"
        " demo again when nothing else runs."
    )


def outcome(training: Training, size: Size, busy: str | None) -> str:
    """A table of what the kernels change in the whole step: time, speed and loss."""
    stock = training.stock
    headings = [("Model", 12), ("ms a step", 9), ("tokens/s", 8), ("speed-up", 8), ("loss", 7),
                ("to stock's", 10)]  # fmt: skip
    tokens = size.batch * size.block
    body = [
        [
            run.name,
            f"{1e3 * tokens / run.tokens_per_second:.1f}",
            f"{run.tokens_per_second:.0f}",
            _ratio(training, run, busy),
            f"{run.final_loss:.4f}",
            f"{run.final_loss - stock.final_loss:+.4f}",
        ]
        for run in training.runs
    ]
    subtitle = (
        "median step, all in turn; loss: mean of the last quarter, each with masks of its own"
    )
    return table.box("TRAINING SPEED", subtitle, headings, body)


def _ratio(training: Training, run: TrainingRun, busy: str | None) -> str:
    if busy is not None:
        return table.ABSENT
    rates = run.tokens_per_second, training.stock.tokens_per_second
    return speed_up(*rates, len(run.losses))


def curves(training: Training) -> str:
    """The loss curves side by side at evenly spaced steps, and their distance from stock."""
    stock, *others = training.runs
    last = len(stock.losses) - 1
    lines = min(_CURVE_LINES, last + 1)
    shown = sorted({round(i * last / max(lines - 1, 1)) for i in range(lines)})
    body = [[f"step {i + 1}", f"{stock.losses[i]:.4f}"] for i in shown]
    headings = [("", 12), (stock.name, 10)]
    for run in others:
        headings += [(run.name, 10), ("difference", 10)]
        differences = training.differences(run)
        for line, i in zip(body, shown, strict=True):
            line += [f"{run.losses[i]:.4f}", f"{differences[i]:+.4f}"]
    return table.box("TRAINING LOSS", f"dropout {DROPOUT:g}", headings, body)


def agreement(found: Agreement) -> str:
    return (
        f"The weights that our kernels trained, in the stock model: the same next byte for"
        f" {found.same:,} of {found.tokens:,}, logits that differ by {found.difference:.0e} of the"
        " largest."
    )


def memory(peaks: dict[str, int]) -> str:
    """A table of the memory of a step, by model; the first one is stock."""
    first = next(iter(peaks.values()))
    body = [
        [name, f"{peak / 2**20:.1f}", f"{100 * peak / first:.0f} %"] for name, peak in peaks.items()
    ]
    headings = [("Model", 12), ("MiB at peak", 11), ("share", 6)]
    subtitle = "of a training step, beyond parameters, the optimizer's state and the batch"
    return table.box("MEMORY", subtitle, headings, body)


def search(found: dict[str, Found], busy: str | None) -> str:
    """A table of a trained encoder's search: how fast it is, and whether it finds the same. Few
    paragraphs give no speed-up."""
    stock = found["stock"]
    count = len(stock.paragraphs)
    is_noise = busy is not None or count < CHUNK
    body = [
        [
            name,
            f"{count / one.seconds:.0f}",
            f"{queries_per_second(one):.0f}",
            table.ABSENT if is_noise else f"{stock.seconds / one.seconds:.2f}x",
        ]
        for name, one in found.items()
    ]
    headings = [("MiniLM", 12), ("paragraphs/s", 12), ("queries/s", 9), ("speed-up", 8)]
    subtitle = (
        f"{count} paragraphs of Python's documentation; {same_rankings(found)} of"
        f" {len(stock.rankings)} questions find the same {RANKED} in the same order"
    )
    return table.box("SEARCH WITH A TRAINED MODEL", subtitle, headings, body)


def answer(question: str, found: Answer, busy: str | None) -> str:
    """Shows the text of a trained model, and the tokens a second of stock and of ours."""
    rates = f"{found.stock:.0f} tokens/s stock, in bfloat16, {found.ours:.0f} with our kernels"
    if busy is None:
        rates += f": {found.ours / found.stock:.2f}x"
    text = textwrap.fill(" ".join(found.text.split()), 96, initial_indent="  ",
                         subsequent_indent="  ")  # fmt: skip
    return f"SmolLM2-135M-Instruct is asked: {question}\n{text}\n{rates}"


def no_search(install: str) -> str:
    return f"No search with a trained model, for MiniLM is not installed: {install}"
