# SPDX-License-Identifier: MIT
"""The frame of the rungs of this step: GPT-2 of Transformers, its time, profile and error.

A rung changes the stock model. Then this module compares the gradients of the first sequence with
those of the stock model in double precision, and times a step: forward pass, loss and backward
pass. With `--profile` it prints the operators of a step in the order of their time.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

try:
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging
except ImportError:
    print("transformers is not installed")
    sys.exit(77)

logging.set_verbosity_error()


@dataclass(frozen=True)
class Place:
    """A device, what it computes with, and a problem that keeps it busy."""

    device: str
    dtype: torch.dtype
    sizes: tuple[int, int, int, int]  # layers, width, sequences, tokens
    bound: float  # of the error: twelve layers of this type stay below it
    product: int  # rows and columns of the product whose rate is the ceiling
    counted: str  # by the profiler, on this device

    @property
    def activity(self) -> torch.profiler.ProfilerActivity:
        return getattr(torch.profiler.ProfilerActivity, self.device.upper())

    def name(self) -> str:
        return "CPU" if self.device == "cpu" else torch.cuda.get_device_name()

    def wait(self) -> None:
        """Returns when the device has done what it was asked to do."""
        if self.device == "cuda":
            torch.cuda.synchronize()


# The layers and the width are those of the smallest of the published models.
CPU = Place("cpu", torch.float32, (12, 768, 1, 256), 1e-4, 1024, "calls of operators")
CUDA = Place("cuda", torch.bfloat16, (12, 768, 8, 1024), 2**-5, 8192, "kernels")


def stock(layers: int, width: int) -> GPT2LMHeadModel:
    """Returns GPT-2 with random weights; dropout, which would draw other masks, is off."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=max(1, width // 64), vocab_size=16384,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def step(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Runs one step of training without the optimizer; returns the embedding's gradient.

    The gradient has passed through every layer, so that an error anywhere shows in it.
    """
    model.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    return model.get_input_embeddings().weight.grad


def microseconds(call: Callable[[], object], place: Place = CPU) -> float:
    """The median of five calls, after one that warms up."""
    times = []
    for _ in range(6):
        place.wait()
        start = time.perf_counter()
        call()
        place.wait()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[1:])


def operations(model: GPT2LMHeadModel, tokens: torch.Tensor) -> float:
    """Counts those of products: two for each weight and token, three times in both passes."""
    weights = sum(p.numel() for name, p in model.named_parameters() if "wpe" not in name)
    scores = 2 * tokens.shape[1] * model.config.n_embd * model.config.n_layer
    return 6.0 * tokens.numel() * (weights + scores)


def product_rate(place: Place) -> float:
    """The ceiling: operations a second of a large matrix product."""
    n = place.product
    a, b = torch.randn(2, n, n, device=place.device, dtype=place.dtype)
    return 2 * n**3 / (microseconds(lambda: a @ b, place) / 1e6)


def profile(call: Callable[[], object], place: Place) -> None:
    activities = {torch.profiler.ProfilerActivity.CPU, place.activity}
    with torch.profiler.profile(activities=activities) as recorded:
        call()
        place.wait()
    order = f"self_{place.device}_time_total"
    print(recorded.key_averages().table(sort_by=order, row_limit=12))


def counters(model: torch.nn.Module, tokens: torch.Tensor, place: Place) -> dict[str, float]:
    """Counts what a step calls, and what its forward pass keeps; a busy machine changes neither."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in weights:
            kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step(model, tokens)
    with torch.profiler.profile(activities=[place.activity]) as recorded:
        step(model, tokens)
        place.wait()
    there = getattr(torch.autograd.DeviceType, place.device.upper())
    found = [event for event in recorded.events() if event.device_type == there]
    return {
        place.counted: sum(not event.cpu_children for event in found),
        "kept for the backward pass, MB": sum(kept.values()) / 1e6,
    }


def run(rung: str, change: Callable[[GPT2LMHeadModel, torch.Tensor], None],
        arguments: Sequence[str], place: Place = CPU) -> int:  # fmt: skip
    """Applies `change` to the stock model, checks and times it; returns the exit status."""
    numbers = [int(word) for word in arguments if word.isdigit()]
    layers, width, sequences, length = numbers if len(numbers) == 4 else place.sizes
    model = stock(layers, width).to(place.device, place.dtype)
    tokens = torch.randint(0, model.config.vocab_size, (sequences, length), device=place.device)
    wanted = step(copy.deepcopy(model).double(), tokens[:1])
    change(model, tokens)
    error = float((step(model, tokens[:1]) - wanted).abs().max() / wanted.abs().max())
    if "--profile" in arguments:
        profile(lambda: step(model, tokens), place)
    us = microseconds(lambda: step(model, tokens), place)
    amount = operations(model, tokens)
    share = amount / product_rate(place) * 1e6 / us
    dtype = str(place.dtype).removeprefix("torch.")
    problem = f"GPT-2 {layers}x{width}, {sequences}x{length} tokens, {dtype}"
    print(f"{rung} | {place.name()} | {problem} | {us:.1f} us | {amount / us / 1e3:.5g} GFLOP/s"
          f" | {100 * share:.1f} % | {error:.1e}")  # fmt: skip
    if error <= place.bound:
        return 0
    print(f"wrong: the error is above {place.bound}")
    return 1
