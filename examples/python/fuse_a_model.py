# SPDX-License-Identifier: MIT
"""Fuses Hugging Face models, which nobody changed for it, and times a step of training.

    python examples/python/fuse_a_model.py --model llama

The functions make models for `transformer-kernels fuse examples.python.fuse_a_model:gpt2`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import transformer_kernels as tfk

WORDS, WIDTH, LAYERS, HEADS = 4096, 256, 2, 4
SIZES = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}  # fmt: skip


def gpt2() -> Any:
    """A GPT-2 with dropout."""
    configure: Any = GPT2Config  # typed in part only
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(
        configure(vocab_size=WORDS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, **ends)
    )


def llama() -> Any:
    """A Llama: RMSNorm, rotary positions, a gated MLP, and keys shared by two heads."""
    configure: Any = LlamaConfig
    return LlamaForCausalLM(
        configure(**SIZES, num_key_value_heads=HEADS // 2, intermediate_size=704)
    )


def bert() -> Any:
    """A BERT with dropout, whose norms stand behind the sums."""
    configure: Any = BertConfig
    return BertForMaskedLM(configure(**SIZES, intermediate_size=4 * WIDTH))


MODELS = {"gpt2": gpt2, "llama": llama, "bert": bert}


def step(model: Any, batch: dict[str, torch.Tensor]) -> float:
    """Computes the loss and all gradients; returns the seconds."""
    begin = time.perf_counter()
    model(**batch).loss.backward()
    model.zero_grad()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4)
    parsed = parser.parse_args()
    torch.manual_seed(0)
    stock = MODELS[parsed.model]()
    tokens = torch.randint(WORDS, (parsed.batch, 128))
    batch = {"input_ids": tokens, "labels": tokens}
    fused = copy.deepcopy(stock)
    print(tfk.fuse(fused, batch))
    stock.eval()
    fused.eval()
    with torch.no_grad():
        difference = stock(**batch).logits - fused(**batch).logits
    print(f"largest difference of logits: {float(difference.abs().max()):.1e}")
    models = {"stock": stock.train(), "fused": fused.train()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(parsed.steps + 1):
        for name, model in models.items():
            seconds[name].append(step(model, batch))
    median = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    words = ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in median.items())
    print(f"a step: {words}, {median['stock'] / median['fused']:.2f}x")


if __name__ == "__main__":
    main()
