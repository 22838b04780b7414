#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prompts continued in batches, beside Hugging Face with models of the same sizes.

    generate.py [--shapes gpt2,llama1b] [--batches 1,64] [--compile] [--json FILE]

Weights are random and choices greedy. Tokens per second count all sequences, behind the first new
token of each; the time of the prompt alone is that of a call for one token. "floor" is a copy of as
many bytes as the weights and the cache of a step have.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import transformer_kernels as tfk
from transformer_kernels.bench import decoding
from transformer_kernels.measure import machine, schema
from transformer_kernels.measure.ceilings import measure_copy
from transformer_kernels.measure.schema import GenerateRow
from transformer_kernels.measure.timing import make_timer

NAMES = {"gpt2": "GPT-2 124M", "llama1b": "Llama 1B", "tiny": "Llama tiny"}
# Sizes as Hugging Face names them.
LLAMAS: dict[str, dict[str, Any]] = {
    "llama1b": {
        "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
    },
    "tiny": {
        "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96,
    },
}  # fmt: skip
EAGER, GRAPHS = "ours, eager", "ours, graphs"
Way = Callable[[Tensor, int], Tensor]  # (tokens, new) -> all tokens


def hugging_face(shape: str, context: int) -> Any:
    import transformers

    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    if shape == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**ends))
    config = transformers.LlamaConfig(
        **LLAMAS[shape], max_position_embeddings=context,
        tie_word_embeddings=True, **ends,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def ours(stock: Any, shape: str) -> nn.Module:
    """Our model of the same sizes; a Llama has the same weights."""
    if shape == "gpt2":
        config = tfk.models.LanguageModelConfig(
            vocab_size=50257, context=1024, dim=768, num_layers=12, num_heads=12, tie_weights=True
        )
        return tfk.models.LanguageModel(config)
    llama = tfk.models.LlamaConfig.from_hugging_face(stock.config.to_dict())
    model = tfk.models.Llama(llama)
    model.load_state_dict(stock.state_dict())
    return model


def ways(shape: str, batch: int, given: argparse.Namespace) -> tuple[dict[str, Way], nn.Module]:
    """All ways to continue prompts, and our model."""
    context = given.prompt + given.new
    place = {"device": given.device, "dtype": getattr(torch, given.dtype)}
    with torch.device(given.device):
        stock = hugging_face(shape, max(context, 1024)).to(**place).eval()
        mine = ours(stock, shape).to(**place).eval()
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}

    def stock_way(**more: Any) -> Way:
        return lambda tokens, new: stock.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new,
            min_new_tokens=new, **options, **more,
        )  # fmt: skip

    found: dict[str, Way] = {"Hugging Face": stock_way()}
    if given.compile:
        found["Hugging Face, static, compiled"] = stock_way(cache_implementation="static")
    found[EAGER] = lambda tokens, new: tfk.generate(mine, tokens, new, graphs=False)
    found[GRAPHS] = lambda tokens, new: tfk.generate(mine, tokens, new, graphs=True)
    page = 64
    engine = tfk.engine(
        mine, batch * -(-context // page), page_size=page, max_sequences=batch, graphs=True,
        max_tokens=max(8192, batch),
    )  # fmt: skip

    texts = itertools.count()

    def by_engine(tokens: Tensor, new: int) -> Tensor:
        # Under a salt of its own a prompt shares no pages with those of earlier rounds.
        parameters = tfk.decode.Parameters(max_new_tokens=new, salt=str(next(texts)))
        results = engine.generate(tokens.tolist(), parameters)
        rows = torch.tensor([result.tokens for result in results], device=tokens.device)
        return torch.cat([tokens, rows], 1)

    found["our engine, graphs"] = by_engine
    if given.fused:
        with torch.device(given.device):
            fused = hugging_face(shape, max(context, 1024)).to(**place).eval()
        tfk.fuse(fused, torch.randint(999, (batch, 8), device=given.device))
        found["Hugging Face fused, our graphs"] = lambda tokens, new: tfk.generate(
            fused, tokens, new, graphs=True
        )
    return found, mine


def bytes_of_a_step(model: Any, batch: int, length: float) -> int:
    """Weights, without tables of which only rows are read, and keys and values of the cache."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    heads = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    weights = sum(p.numel() * p.itemsize for p in model.parameters() if id(p) not in tables - heads)
    cache = model.new_cache(1, 1)
    token = 2 * cache.keys.numel() * cache.keys.itemsize
    return int(weights + batch * length * token)


def seconds(way: Way, tokens: Tensor, new: int) -> float:
    wait(tokens)
    start = time.perf_counter()
    way(tokens, new)
    wait(tokens)
    return time.perf_counter() - start


def wait(tokens: Tensor) -> None:
    if tokens.is_cuda:
        torch.cuda.synchronize(tokens.device)


def compare(
    shape: str, batch: int, copy_gbps: float, given: argparse.Namespace
) -> list[GenerateRow]:
    """Times all ways, which take turns."""
    all_ways, mine = ways(shape, batch, given)
    tokens = torch.randint(1, 999, (batch, given.prompt), device=given.device)
    found = {}
    for name, way in all_ways.items():
        for _ in range(2):  # graphs are captured, and code is compiled
            way(tokens, 1)
            found[name] = way(tokens, given.new)[:, given.prompt :]
    first: dict[str, list[float]] = {name: [] for name in all_ways}
    whole: dict[str, list[float]] = {name: [] for name in all_ways}
    for _ in range(given.rounds):
        for name, way in all_ways.items():
            first[name].append(seconds(way, tokens, 1))
            whole[name].append(seconds(way, tokens, given.new))
    size = bytes_of_a_step(mine, batch, given.prompt + given.new / 2)
    rows = []
    for name in all_ways:
        total = statistics.median(whole[name])
        rate = batch * (given.new - 1) / (total - statistics.median(first[name]))
        rows.append(GenerateRow(
            model=NAMES[shape], batch=batch, prompt=given.prompt, new=given.new, provider=name,
            tokens_per_second=rate, whole_per_second=batch * given.new / total, bytes=size,
            floor_gbps=copy_gbps, of_floor=rate / batch * size / copy_gbps / 1e9,
            equal=float((found[name] == found[EAGER]).double().mean()),
        ))  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="gpt2,llama1b", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens that follow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="also times a compiled static cache")
    parser.add_argument("--fused", action="store_true", help="also times fused models of theirs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result is written")
    given = parser.parse_args()
    device = torch.device(given.device)
    copy_gbps = measure_copy(make_timer(device, "graph"), device)
    rows = []
    with torch.no_grad():
        for shape in given.shapes.split(","):
            for batch in map(int, given.batches.split(",")):
                rows += compare(shape, batch, copy_gbps, given)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
    settings = {name: str(getattr(given, name)) for name in ("dtype", "prompt", "new", "rounds")}
    result = machine.new_result(device, settings, generating=rows)
    print(decoding.render(result))
    if given.json:
        schema.save(result, given.json)


if __name__ == "__main__":
    main()
