# SPDX-License-Identifier: MIT
"""The program that examples/cpp/gpt2 builds, small models for it, and the batches that it draws.

TFK_GPT2 names the program. Without it the tests are skipped: it takes an installed library to build
it.
"""

from __future__ import annotations

import csv
import os
import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

transformers = pytest.importorskip("transformers")

LENGTH = 24
BATCH = 3
VOCABULARY = 199
MASK = (1 << 64) - 1

Program = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(autouse=True)
def fresh_random(fresh_seed: None) -> None:
    """Python's generator follows from the seed that the test prints."""
    random.seed(torch.initial_seed())


@pytest.fixture(scope="session")
def gpt2() -> Program:
    path = os.environ.get("TFK_GPT2")
    if path is None:
        pytest.skip("TFK_GPT2 does not name the program of examples/cpp/gpt2")

    def run(*arguments: Any, fails: int = 0, **options: Any) -> Any:
        result = subprocess.run(
            [path, *map(str, arguments)], capture_output=True, timeout=600, check=False, **options
        )
        assert result.returncode == fails, result
        if fails:
            assert result.stderr.startswith(b"gpt2: "), result
        return result

    return run


def small_model(layers: int = 2, vocabulary: int = VOCABULARY) -> GPT2LMHeadModel:
    """A GPT-2 with weights large enough that each of its parts counts."""
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=32, n_embd=48, n_layer=layers, n_head=3,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip
    model: GPT2LMHeadModel = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def write_tokens(path: Path, tokens: Sequence[int]) -> None:
    """Writes a file of tokens as llm.c has them."""
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def window(seed: int, number: int, places: int) -> int:
    """The place of a window: SplitMix64, as data.cpp has it."""
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return (z ^ z >> 31) % places


def batch(tokens: Tensor, number: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """The inputs and targets of the batch with this number."""
    places = len(tokens) - LENGTH
    rows = [
        tokens[start : start + LENGTH + 1]
        for start in (window(seed, number * BATCH + row, places) for row in range(BATCH))
    ]
    both = torch.stack(rows)
    return both[:, :-1], both[:, 1:]


def loss_of(model: GPT2LMHeadModel, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = model(inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert isinstance(loss, Tensor)
    return loss


def losses_of(out: Path) -> list[float]:
    """The losses in the log of a training."""
    with (out / "log.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def kill_when_saved(start: Sequence[str], out: Path) -> None:
    """Starts a training, and kills it as soon as something is saved."""
    with subprocess.Popen(start, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (out / "checkpoint.safetensors").exists():
            pass
        process.kill()
