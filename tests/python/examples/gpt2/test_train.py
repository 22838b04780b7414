# SPDX-License-Identifier: MIT
"""Training by examples/cpp/gpt2 against PyTorch and transformers: gradients, losses, files."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import GPT2LMHeadModel

from transformer_kernels.testing.tolerance import floor_unit

from .conftest import (
    BATCH,
    LENGTH,
    VOCABULARY,
    Program,
    batch,
    loss_of,
    losses_of,
    small_model,
    write_tokens,
)

SIZES = ("--batch", BATCH, "--length", LENGTH)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small models gain nothing by threads, and wait for each other where CPUs are few."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tokens(tmp_path: Path) -> Tensor:
    numbers = torch.randint(VOCABULARY, (400,))
    write_tokens(tmp_path / "tokens.bin", numbers.tolist())
    return numbers


def gradients_of(
    model: GPT2LMHeadModel, tokens: Tensor, calls: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The gradients of the mean loss, with products in ``dtype`` where that is bfloat16."""
    model = copy.deepcopy(model).to(torch.float64 if dtype == torch.float64 else torch.float32)
    for number in range(calls):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = loss_of(model, *batch(tokens, number))
        (loss / calls).backward()
    return {
        name.removeprefix("transformer."): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def distance(result: Tensor, reference: Tensor) -> float:
    return (result.double() - reference).norm().item()


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("recompute", ["nothing", "activation", "layer"])
@pytest.mark.parametrize("products", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_gradients_of_the_first_step_are_those_of_pytorch(
    gpt2: Program, tmp_path: Path, tokens: Tensor, calls: int, recompute: str, products: torch.dtype
) -> None:
    model = small_model()
    model.save_pretrained(tmp_path / "model")
    gpt2(
        "train", "--model", tmp_path / "model", "--data", tmp_path / "tokens.bin", *SIZES,
        "--accumulate", calls, "--recompute", recompute, "--gradients", tmp_path / "g.safetensors",
        *(["--bfloat16"] if products == torch.bfloat16 else []),
    )  # fmt: skip
    ours = load_file(tmp_path / "g.safetensors")
    reference = gradients_of(model, tokens, calls, torch.float64)
    theirs = gradients_of(model, tokens, calls, products)
    assert ours.keys() == reference.keys()
    for name in reference:
        # The norm of an error of few numbers, after many stores, varies less than its largest.
        bound = 2 * distance(theirs[name], reference[name])
        bound += 4 * floor_unit(products) * reference[name].norm().item()
        assert distance(ours[name], reference[name]) <= bound, name
    with safe_open(tmp_path / "g.safetensors", "pt") as file:
        loss = float(file.metadata()["loss"])
    wanted = sum(loss_of(model.double(), *batch(tokens, n)).item() for n in range(calls)) / calls
    assert loss == pytest.approx(wanted, rel=1e-5 if products == torch.float32 else 2e-2)


STEPS = 60
SETTINGS = (
    *SIZES, "--steps", STEPS, "--lr", 2e-3, "--min-lr", 2e-4, "--warmup", 6, "--clip", 0.5,
    "--weight-decay", 0.1,
)  # fmt: skip


def curve(model: GPT2LMHeadModel, tokens: Tensor) -> list[float]:
    """The losses of the same training by torch.optim.AdamW."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95))
    losses = []
    for step in range(STEPS):
        part = (step - 6) / (STEPS - 6)
        lr = 2e-3 * (step + 1) / 6 if step < 6 else 2e-4 + 9e-4 * (1 + math.cos(math.pi * part))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = loss_of(model, *batch(tokens, step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("flags", "noise"), [((), 2e-5), (("--bfloat16",), 1e-2)], ids=str)
def test_losses_are_those_of_pytorch_from_the_same_weights_and_batches(
    gpt2: Program, tmp_path: Path, tokens: Tensor, flags: tuple[str, ...], noise: float
) -> None:
    model = small_model(layers=1)
    model.save_pretrained(tmp_path / "model")
    gpt2(
        "train", "--model", tmp_path / "model", "--data", tmp_path / "tokens.bin", *SETTINGS,
        "--out", tmp_path / "out", *flags,
    )  # fmt: skip
    ours = losses_of(tmp_path / "out")
    wanted = curve(model, tokens)
    assert len(ours) == STEPS
    assert wanted[-1] < wanted[0]
    assert ours == pytest.approx(wanted, rel=noise)


def test_transformers_and_pytorch_load_what_is_saved(
    gpt2: Program, tmp_path: Path, tokens: Tensor
) -> None:
    small_model().save_pretrained(tmp_path / "model")
    gpt2(
        "train", "--model", tmp_path / "model", "--data", tmp_path / "tokens.bin", *SIZES,
        "--steps", 1, "--warmup", 0, "--lr", 0, "--min-lr", 0, "--out", tmp_path / "out",
    )  # fmt: skip
    before = GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    after = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    for name, parameter in before.state_dict().items():
        assert torch.equal(after.state_dict()[name], parameter), name
    stored = load_file(tmp_path / "out" / "model.safetensors")
    missing, unexpected = before.load_state_dict(stored, strict=False)
    assert missing == ["lm_head.weight"]  # which is the embedding
    assert unexpected == []
