# SPDX-License-Identifier: MIT
"""The frame of the rungs of this step: GPT-2 of Transformers, its time, profile and error.

A rung changes the stock model. Then this module compares the gradients with those of the stock
model in double precision, and times a step: forward pass, loss and backward pass. With `--profile`
it prints the operators of a step in the order of their time.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

try:
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging
except ImportError:
    print("transformers is not installed")
    sys.exit(77)

SIZES = (12, 768, 1, 256)  # layers, width, sequences, tokens: the smallest of the published models
BOUND = 1e-4  # of the error; twelve layers of float32 stay below it
logging.set_verbosity_error()


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


def microseconds(call: Callable[[], object]) -> float:
    """The median of five calls, after one that warms up."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[1:])


def operations(model: GPT2LMHeadModel, tokens: torch.Tensor) -> float:
    """Counts those of products: two for each weight and token, three times in both passes."""
    weights = sum(p.numel() for name, p in model.named_parameters() if "wpe" not in name)
    scores = 2 * tokens.shape[1] * model.config.n_embd * model.config.n_layer
    return 6.0 * tokens.numel() * (weights + scores)


def product_rate() -> float:
    """The ceiling: operations a second of a large matrix product."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / (microseconds(lambda: a @ b) / 1e6)


def profile(call: Callable[[], object]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        call()
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=12))


def counters(model: torch.nn.Module, tokens: torch.Tensor) -> dict[str, float]:
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
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        step(model, tokens)
    return {
        "calls of operators": sum(not event.cpu_children for event in recorded.events()),
        "kept for the backward pass, MB": sum(kept.values()) / 1e6,
    }


def run(rung: str, change: Callable[[GPT2LMHeadModel, torch.Tensor], None],
        arguments: Sequence[str]) -> int:  # fmt: skip
    """Applies `change` to the stock model, checks and times it; returns the exit status."""
    numbers = [int(word) for word in arguments if word.isdigit()]
    layers, width, sequences, length = numbers if len(numbers) == 4 else SIZES
    model = stock(layers, width)
    tokens = torch.randint(0, model.config.vocab_size, (sequences, length))
    wanted = step(copy.deepcopy(model).double(), tokens)
    change(model, tokens)
    error = float((step(model, tokens) - wanted).abs().max() / wanted.abs().max())
    if "--profile" in arguments:
        profile(lambda: step(model, tokens))
    us = microseconds(lambda: step(model, tokens))
    amount = operations(model, tokens)
    share = amount / product_rate() * 1e6 / us
    problem = f"GPT-2 {layers}x{width}, {sequences}x{length} tokens, float32"
    print(f"{rung} | CPU | {problem} | {us:.1f} us | {amount / us / 1e3:.5g} GFLOP/s"
          f" | {100 * share:.1f} % | {error:.1e}")  # fmt: skip
    if error <= BOUND:
        return 0
    print(f"wrong: the error is above {BOUND}")
    return 1
