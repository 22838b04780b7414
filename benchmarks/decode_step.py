#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decoding one sequence on the CPU, beside llama.cpp with the same random weights.

    decode_step.py [--shapes 110M,0.5B] [--kinds bf16,q8,q4] [--threads 2] [--prompts 0,128]

A machine's bandwidth may change from second to second: within a round all take turns, and each
ratio is the median of those within a round. "floor" reads the packed weights once, on the same
threads; "barrier" is the time in which the threads meet. llama.cpp needs ``gguf`` and
``llama-cpp-python``, and is left out where they are missing.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.bench import decoding
from transformer_kernels.decode import StepPlan, StepSession, StepWeight, barrier_nanoseconds
from transformer_kernels.measure import machine, schema
from transformer_kernels.measure.schema import DecodeRow

SHAPES = {  # hidden, layers, heads, key-value heads, inner, vocabulary; the head dim is 64
    "110M": (768, 12, 12, 12, 2048, 32000),
    "0.5B": (896, 24, 14, 2, 4864, 151936),
}
GGML = {"bf16": "BF16", "f16": "F16", "q8": "Q8_0", "q4": "Q4_0"}
NAMES = {
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate",
    "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
DIM, CONTEXT, START = 64, 512, 64


def matrices(shape: str) -> Iterator[tuple[int, str, Tensor]]:
    """Yields (layer, name, matrix); the embedding is of layer -1."""
    d, layers, heads, kv_heads, inner, vocabulary = SHAPES[shape]
    draw = torch.Generator().manual_seed(0)
    sizes = {
        "q": (heads * DIM, d), "k": (kv_heads * DIM, d), "v": (kv_heads * DIM, d),
        "o": (d, heads * DIM), "gate": (inner, d), "up": (inner, d), "down": (d, inner),
    }  # fmt: skip
    yield -1, "embedding", torch.randn(vocabulary, d, generator=draw) * 0.02
    for layer in range(layers):
        for name, size in sizes.items():
            yield layer, name, torch.randn(*size, generator=draw) * 0.02


def weight_of(matrix: Tensor, kind: str) -> StepWeight:
    """The matrix in a format; blocks are those of ggml's q8_0 and q4_0."""
    if kind in ("bf16", "f16"):
        return StepWeight(matrix.to(torch.bfloat16 if kind == "bf16" else torch.float16))
    blocks = matrix.view(len(matrix), -1, 32)
    if kind == "q8":
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        codes = (blocks / scale).round().to(torch.int8).view_as(matrix)
        return StepWeight(codes, scale.squeeze(-1).half())
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    codes = (blocks / scale + 8.5).int().clamp(0, 15).view_as(matrix) ^ 8
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return StepWeight(packed, scale.squeeze(-1).half())


class Ours:
    """A session of ours."""

    def __init__(self, shape: str, kind: str, activations: int) -> None:
        d, _, heads, kv_heads, inner, vocabulary = SHAPES[shape]
        angles = torch.outer(
            torch.arange(float(CONTEXT)), 500000.0 ** -torch.linspace(0, 1, 33)[:32]
        )
        self.activations = activations
        self.plan = StepPlan(
            hidden=d, heads=heads, kv_heads=kv_heads, head_dim=DIM, inner=inner, vocab=vocabulary,
            cosines=angles.cos(), sines=angles.sin(), interleaved=True,
        )  # fmt: skip
        given: dict[str, Any] = {}
        for layer, name, matrix in matrices(shape):
            if layer < 0:
                embedding = weight_of(matrix, kind)
                continue
            given[name] = weight_of(matrix, kind)
            if len(given) == len(NAMES):
                self.plan.add_layer(attention_norm=torch.ones(d), mlp_norm=torch.ones(d), **given)
                given = {}
        self.plan.finish(embedding=embedding, final_norm=torch.ones(d))
        self.session = StepSession(self.plan, CONTEXT)

    def prefill(self, tokens: list[int]) -> None:
        self.session.truncate(0)
        self.session.step(tokens, activations=self.activations)

    def decode(self, count: int) -> None:
        token = torch.ones(1, dtype=torch.int64)
        for _ in range(count):
            token, _ = self.session.step(token, activations=self.activations)


class Llama:
    """A context of llama.cpp's."""

    def __init__(self, shape: str, kind: str, threads: int, folder: Path) -> None:
        import llama_cpp

        path = folder / f"{shape}-{kind}.gguf"
        write_gguf(path, shape, kind)
        self.of = of = llama_cpp
        of.llama_backend_init()
        self._quiet = of.llama_log_callback(lambda *_: None)
        of.llama_log_set(self._quiet, ctypes.c_void_p(0))
        model = of.llama_model_default_params()
        model.n_gpu_layers = 0
        self._model = of.llama_model_load_from_file(str(path).encode(), model)
        context = of.llama_context_default_params()
        context.n_ctx, context.n_threads, context.n_threads_batch = CONTEXT, threads, threads
        self._context = of.llama_init_from_model(self._model, context)
        path.unlink()  # its pages stay mapped

    def _run(self, tokens: list[int]) -> None:
        array = (self.of.llama_token * len(tokens))(*tokens)
        self.of.llama_decode(self._context, self.of.llama_batch_get_one(array, len(tokens)))
        self.of.llama_get_logits_ith(self._context, -1)

    def prefill(self, tokens: list[int]) -> None:
        self.of.llama_memory_clear(self.of.llama_get_memory(self._context), True)
        self._run(tokens)

    def decode(self, count: int) -> None:
        for _ in range(count):
            self._run([1])


def write_gguf(path: Path, shape: str, kind: str) -> None:
    """Writes the model as llama.cpp reads it."""
    import gguf

    d, layers, heads, kv_heads, inner, vocabulary = SHAPES[shape]
    type_ = getattr(gguf.GGMLQuantizationType, GGML[kind])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(d)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(DIM)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("none")
    ones = torch.ones(d).numpy()
    for layer, name, matrix in matrices(shape):
        full = "token_embd" if layer < 0 else f"blk.{layer}.{NAMES[name]}"
        data = gguf.quants.quantize(matrix.numpy(), type_)
        writer.add_tensor(f"{full}.weight", data, raw_dtype=type_)
        if layer < 0:
            writer.add_tensor("output_norm.weight", ones)
        elif name == "q":
            writer.add_tensor(f"blk.{layer}.attn_norm.weight", ones)
            writer.add_tensor(f"blk.{layer}.ffn_norm.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(
    shape: str, kind: str, threads: int, rounds: int, prompt: int, folder: Path
) -> list[DecodeRow]:
    """Times all ways to decode single tokens, or a prompt where it has any tokens."""
    rivals: dict[str, Any] = {}
    if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf"):
        rivals["llama.cpp"] = Llama(shape, kind, threads, folder)
    rivals["ours"] = Ours(shape, kind, 16)
    if kind[0] == "q":
        rivals["ours, 8-bit activations"] = Ours(shape, kind, 8)
    count = prompt or (32 if shape == "110M" else 16)
    times: dict[str, list[float]] = {name: [] for name in (*rivals, "floor", "barrier")}
    for _ in range(rounds):
        for name, rival in rivals.items():
            time.sleep(0.02)
            if prompt:
                times[name].append(seconds(lambda r=rival: r.prefill([1] * prompt)) / prompt)
                continue
            rival.prefill([1] * START)
            rival.decode(2)
            times[name].append(seconds(lambda r=rival: r.decode(count)) / count)
        times["floor"].append(seconds(rivals["ours"].plan.read))
        times["barrier"].append(barrier_nanoseconds(20000) * 1e-9)
    middle = {name: statistics.median(of) for name, of in times.items()}
    size = rivals["ours"].plan.packed_bytes

    def times_as_fast(name: str, as_: str) -> float:
        return statistics.median(a / b for a, b in zip(times[as_], times[name], strict=True))

    return [
        DecodeRow(
            model=shape,
            weights=kind,
            prompt=prompt,
            provider=name,
            tokens_per_second=1 / middle[name],
            of_floor=None if prompt else times_as_fast(name, "floor"),
            of_llama=times_as_fast(name, "llama.cpp") if "llama.cpp" in rivals else None,
            bytes=size,
            floor_gbps=size / middle["floor"] / 1e9,
            barrier_ns=middle["barrier"] * 1e9,
        )
        for name in rivals
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="110M", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--kinds", default="bf16,q8,q4")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", default="0", help="tokens of prompts; 0 times single tokens")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result is written")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for shape in given.shapes.split(",")
            for prompt in map(int, given.prompts.split(","))
            for kind in given.kinds.split(",")
            for row in compare(shape, kind, given.threads, given.rounds, prompt, Path(folder))
        ]
    settings = {"threads": str(given.threads), "rounds": str(given.rounds)}
    result = machine.new_result(torch.device("cpu"), settings, decoding=rows)
    print(decoding.render(result))
    if given.json:
        schema.save(result, given.json)


if __name__ == "__main__":
    main()
