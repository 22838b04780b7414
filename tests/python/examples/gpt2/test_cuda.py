# SPDX-License-Identifier: MIT
"""examples/cpp/gpt2 on a CUDA device against the same program on the CPU."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from .conftest import Program, kill_when_saved, losses_of, small_model

STEPS = 20


@pytest.fixture
def flags(tmp_path: Path) -> tuple[Any, ...]:
    """A training of a small model on random text. Its head is as uneven as GPT-2's."""
    (tmp_path / "text.txt").write_text("".join(random.choice("abcdefgh ") for _ in range(400)))
    small_model(vocabulary=259).save_pretrained(tmp_path / "model")
    return (
        "train", "--model", tmp_path / "model", "--data", tmp_path / "text.txt", "--batch", 3,
        "--length", 24, "--steps", STEPS, "--warmup", 2, "--accumulate", 2,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["train", "generate"])
def test_a_machine_without_a_device_is_told_in_a_line(
    gpt2: Program, tmp_path: Path, flags: tuple[Any, ...], command: str
) -> None:
    arguments = {
        "train": (*flags, "--out", tmp_path / "out"),
        "generate": ("generate", "--model", tmp_path / "model", "--tokens", 1),
    }
    result = gpt2(
        *arguments[command], "--device", "cuda", fails=2,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert result.stderr.startswith(b"gpt2: --device=cuda")
    assert result.stderr.count(b"\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.cuda
@pytest.mark.parametrize("recompute", ["nothing", "activation", "layer"])
@pytest.mark.parametrize(("products", "noise"), [((), 1e-4), (("--bfloat16",), 3e-2)], ids=str)
def test_losses_are_those_of_the_cpu(
    gpt2: Program,
    tmp_path: Path,
    flags: tuple[Any, ...],
    products: tuple[str, ...],
    noise: float,
    recompute: str,
) -> None:
    cpu, cuda = tmp_path / "cpu", tmp_path / "cuda"
    gpt2(*flags, "--out", cpu)
    gpt2(*flags, "--out", cuda, "--device", "cuda", "--recompute", recompute, *products)
    assert losses_of(cuda) == pytest.approx(losses_of(cpu), rel=noise)


@pytest.mark.cuda
def test_gradients_are_those_of_the_cpu(
    gpt2: Program, tmp_path: Path, flags: tuple[Any, ...]
) -> None:
    for device in ("cpu", "cuda"):
        gpt2(*flags, "--device", device, "--gradients", tmp_path / device)
    expected, found = load_file(tmp_path / "cpu"), load_file(tmp_path / "cuda")
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-4 * gradient.norm(), name


@pytest.mark.cuda
@pytest.mark.parametrize("products", [(), ("--bfloat16",)], ids=str)
def test_a_training_that_is_killed_ends_as_if_it_had_not_been(
    gpt2: Program, tmp_path: Path, flags: tuple[Any, ...], products: tuple[str, ...]
) -> None:
    flags = (*flags, "--device", "cuda", "--save-every", 1, *products)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    gpt2(*flags, "--out", whole)
    kill_when_saved([os.environ["TFK_GPT2"], *map(str, flags), "--out", str(out)], out)
    gpt2(*flags, "--out", out)
    for name in ("model.safetensors", "checkpoint.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert losses_of(out) == losses_of(whole)


@pytest.mark.cuda
@pytest.mark.parametrize("count", [1, 3])
def test_the_same_text_is_written_as_on_the_cpu(gpt2: Program, tmp_path: Path, count: int) -> None:
    small_model(vocabulary=256).save_pretrained(tmp_path / "model")
    texts = [
        gpt2(
            "generate", "--model", tmp_path / "model", "--device", device, "--prompt", "abc",
            "--tokens", 12, "--temperature", 0, "--count", count,
        ).stdout
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    assert texts[0] == texts[1]
