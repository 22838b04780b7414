# SPDX-License-Identifier: MIT
"""Serves many requests at once: each client streams its own tokens from a thread of its own.

    python examples/python/serve_requests.py --requests 32 --sequences 8

The model is a small Llama of random numbers; requests begin with one of a few prompts of a system,
whose pages they share. At the end the same requests run one after another, for comparison.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import transformer_kernels as tfk

WORDS = 1000


def llama() -> Any:
    configure: Any = LlamaConfig  # typed in part only
    config = configure(
        vocab_size=WORDS, hidden_size=256, intermediate_size=704, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def some_prompts(count: int) -> list[list[int]]:
    """Questions of different lengths behind one of two long prompts."""
    systems = [[random.randrange(WORDS) for _ in range(64)] for _ in range(2)]
    return [
        random.choice(systems) + [random.randrange(WORDS) for _ in range(random.randint(1, 40))]
        for _ in range(count)
    ]


class Client(threading.Thread):
    """Asks one question, and reads the answer as it comes."""

    def __init__(self, engine: tfk.decode.Engine, prompt: list[int], new_tokens: int) -> None:
        super().__init__(daemon=True)
        self.engine = engine
        self.prompt = prompt
        self.parameters = tfk.decode.Parameters(max_new_tokens=new_tokens)
        self.tokens: list[int] = []
        self.first_s = 0.0

    def run(self) -> None:
        began = time.perf_counter()
        number = self.engine.submit(self.prompt, self.parameters)
        for piece in self.engine.stream(number):
            self.first_s = self.first_s or time.perf_counter() - began
            self.tokens.append(piece.token)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--sequences", type=int, default=8, help="that run at a time")
    parser.add_argument("--new-tokens", type=int, default=32)
    given = parser.parse_args(arguments)

    torch.manual_seed(0)
    random.seed(0)
    model = llama()
    tfk.fuse(model, torch.randint(WORDS, (1, 64)), measure=False)
    pages = 20 * given.sequences
    engine = tfk.engine(model, pages, max_sequences=given.sequences, max_tokens=128)
    prompts = some_prompts(given.requests)
    total = given.requests * given.new_tokens

    began = time.perf_counter()
    clients = [Client(engine, prompt, given.new_tokens) for prompt in prompts]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    together = time.perf_counter() - began
    first = sorted(client.first_s for client in clients)[len(clients) // 2]
    print(f"together   {total / together:8.1f} tokens/s, the first after {first * 1e3:.0f} ms")
    print(f"           {engine.status}")

    began = time.perf_counter()
    for client in clients:
        prompt = torch.tensor([client.prompt])
        model.generate(prompt, max_new_tokens=given.new_tokens, do_sample=False, eos_token_id=None)
    alone = time.perf_counter() - began
    print(f"generate   {total / alone:8.1f} tokens/s, one request after another")


if __name__ == "__main__":
    main()
