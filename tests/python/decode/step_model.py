# SPDX-License-Identifier: MIT
"""A model of Llama's shape in float64, and its weights in every format that a step takes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_kernels.decode import StepPlan, StepWeight

WEIGHTS = ("q", "k", "v", "o", "gate", "up", "down")
PLAIN = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FORMATS = (*PLAIN, "int8", "int4", "int4_minimum")


def pack_nibbles(numbers: Tensor) -> Tensor:
    """Puts neighbours into one byte, the first into its low nibble."""
    low, high = numbers[:, 0::2] & 15, numbers[:, 1::2] & 15
    return (low | high << 4).to(torch.uint8)


def quantized(weight: Tensor, kind: str, group: int = 32) -> StepWeight:
    """A matrix in one of ``FORMATS``."""
    if kind in PLAIN:
        return StepWeight(weight.to(PLAIN[kind]))
    blocks = weight.float().view(len(weight), -1, group)
    if kind == "int4_minimum":
        least, most = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
        scale, minimum = ((most - least) / 15).half(), least.half()
        numbers = ((blocks - minimum.float()) / scale.float()).round().clamp(0, 15)
        packed = pack_nibbles(numbers.to(torch.int64).view_as(weight))
        return StepWeight(packed, scale.squeeze(-1), minimum.squeeze(-1))
    limit = 127 if kind == "int8" else 7
    scale = (blocks.abs().amax(-1, keepdim=True) / limit).half()
    numbers = (blocks / scale.float()).round().clamp(-limit - 1, limit).to(torch.int64)
    flat = numbers.view_as(weight)
    values = flat.to(torch.int8) if kind == "int8" else pack_nibbles(flat)
    return StepWeight(values, scale.squeeze(-1))


def dequantized(weight: StepWeight) -> Tensor:
    """The numbers that a weight stands for, in float64."""
    if weight.scales is None:
        return weight.values.double()
    numbers = weight.values.to(torch.int64)
    if weight.values.dtype == torch.uint8:
        numbers = torch.stack((numbers & 15, numbers >> 4), -1).flatten(1)
        if weight.minimums is None:
            numbers = (numbers ^ 8) - 8
    blocks = numbers.double().view(len(numbers), weight.scales.shape[1], -1)
    blocks = blocks * weight.scales.double().unsqueeze(-1)
    if weight.minimums is not None:
        blocks = blocks + weight.minimums.double().unsqueeze(-1)
    return blocks.flatten(1)


@dataclasses.dataclass
class Shape:
    """A small model. ``formats`` has one for all weights, or one for each and the embedding."""

    hidden: int = 96
    heads: int = 3
    kv_heads: int = 3
    head_dim: int = 32
    inner: int = 160
    vocab: int = 203
    layers: int = 2
    positions: int = 256
    formats: tuple[str, ...] = ("float32",)
    group: int = 32
    rotary: int | None = None
    interleaved: bool = False
    biases: bool = False
    qk_norm: bool = False
    windows: tuple[int, ...] = (0,)
    softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    activation: str = "silu"
    tied: bool = True


class Reference:
    """The model with random weights."""

    def __init__(self, shape: Shape) -> None:
        s = self.shape = shape
        width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
        sizes = {
            "q": (width, s.hidden), "k": (kv_width, s.hidden), "v": (kv_width, s.hidden),
            "o": (s.hidden, width), "gate": (s.inner, s.hidden), "up": (s.inner, s.hidden),
            "down": (s.hidden, s.inner),
        }  # fmt: skip
        self.layers = [
            {name: self._weight(*size, i) for i, (name, size) in enumerate(sizes.items())}
            for _ in range(s.layers)
        ]
        self.embedding = self._weight(s.vocab, s.hidden, 7)
        self.head = self.embedding if s.tied else self._weight(s.vocab, s.hidden, 8)
        self.vectors = [self._vectors() for _ in range(s.layers)]
        self.final_norm = self._norm(s.hidden)
        pairs = (s.rotary or s.head_dim) // 2
        angles = torch.outer(
            torch.arange(s.positions, dtype=torch.float64),
            10000.0 ** -(torch.arange(pairs, dtype=torch.float64) / pairs),
        )
        self.cosines, self.sines = angles.cos().float(), angles.sin().float()

    def _weight(self, rows: int, cols: int, number: int) -> StepWeight:
        kind = self.shape.formats[number % len(self.shape.formats)]
        return quantized(torch.randn(rows, cols) / math.sqrt(cols), kind, self.shape.group)

    @staticmethod
    def _norm(size: int) -> Tensor:
        return 1 + 0.1 * torch.randn(size)

    def _vectors(self) -> dict[str, Tensor]:
        s = self.shape
        found = {"attention_norm": self._norm(s.hidden), "mlp_norm": self._norm(s.hidden)}
        if s.biases:
            kv_width = s.kv_heads * s.head_dim
            found["q_bias"] = torch.randn(s.heads * s.head_dim)
            found |= {name: torch.randn(kv_width) for name in ("k_bias", "v_bias")}
        if s.qk_norm:
            found |= {name: self._norm(s.head_dim) for name in ("q_norm", "k_norm")}
        return found

    def window(self, layer: int) -> int:
        """How many positions a row of the layer sees; 0 for all."""
        return self.shape.windows[layer % len(self.shape.windows)]

    def plan(self, parts: int) -> StepPlan:
        """The model as a plan."""
        s = self.shape
        plan = StepPlan(
            hidden=s.hidden, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim,
            inner=s.inner, vocab=s.vocab, cosines=self.cosines, sines=self.sines,
            interleaved=s.interleaved, eps=1e-5, softcap=s.softcap,
            logit_softcap=s.logit_softcap, embedding_scale=s.embedding_scale,
            activation=s.activation, parts=parts,
        )  # fmt: skip
        for number, (weights, vectors) in enumerate(zip(self.layers, self.vectors, strict=True)):
            given: dict[str, Any] = {**weights, **vectors}
            plan.add_layer(**given, window=self.window(number))
        head = None if s.tied else self.head
        plan.finish(embedding=self.embedding, final_norm=self.final_norm, head=head)
        return plan

    def logits(self, tokens: Tensor) -> Tensor:
        """The logits of all tokens, in float64."""
        s = self.shape
        x = dequantized(self.embedding)[tokens] * s.embedding_scale
        for number, (layer, vectors) in enumerate(zip(self.layers, self.vectors, strict=True)):
            w = {name: dequantized(weight) for name, weight in layer.items()}
            own = {name: vector.double() for name, vector in vectors.items()}
            y = self._normed(x, own["attention_norm"])
            x = x + self._attention(y, w, own, self.window(number)) @ w["o"].T
            y = self._normed(x, own["mlp_norm"])
            x = x + (self._activation(y @ w["gate"].T) * (y @ w["up"].T)) @ w["down"].T
        out = self._normed(x, self.final_norm.double()) @ dequantized(self.head).T
        return self._capped(out, s.logit_softcap)

    @staticmethod
    def _normed(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, 1e-5)

    @staticmethod
    def _capped(x: Tensor, cap: float) -> Tensor:
        return cap * torch.tanh(x / cap) if cap else x

    def _activation(self, x: Tensor) -> Tensor:
        if self.shape.activation == "silu":
            return F.silu(x)
        return F.gelu(x, approximate="tanh" if self.shape.activation == "gelu_tanh" else "none")

    def _turned(self, x: Tensor) -> Tensor:
        """Rotates ``(T, heads, head_dim)``."""
        pairs = self.cosines.shape[1]
        cosines = self.cosines[: len(x)].double().unsqueeze(1)
        sines = self.sines[: len(x)].double().unsqueeze(1)
        turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
        if self.shape.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
        else:
            a, b = turned.chunk(2, -1)
        new = (a * cosines - b * sines, a * sines + b * cosines)
        both = torch.stack(new, -1).flatten(-2) if self.shape.interleaved else torch.cat(new, -1)
        return torch.cat((both, rest), -1)

    def _attention(
        self, y: Tensor, w: dict[str, Tensor], own: dict[str, Tensor], window: int
    ) -> Tensor:
        s, count = self.shape, len(y)
        q, k, v = (
            (y @ w[name].T + own.get(f"{name}_bias", 0)).view(count, -1, s.head_dim)
            for name in ("q", "k", "v")
        )
        if s.qk_norm:
            q, k = self._normed(q, own["q_norm"]), self._normed(k, own["k_norm"])
        q, k = self._turned(q), self._turned(k)
        k, v = (x.repeat_interleave(s.heads // s.kv_heads, 1) for x in (k, v))
        scores = torch.einsum("thd,uhd->htu", q, k) / math.sqrt(s.head_dim)
        scores = self._capped(scores, s.softcap)
        seen = torch.ones(count, count, dtype=torch.bool).tril()
        if window:
            seen &= ~torch.ones_like(seen).tril(-window)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return torch.einsum("htu,uhd->thd", weights, v).flatten(1)
