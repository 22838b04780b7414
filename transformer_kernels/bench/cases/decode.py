# SPDX-License-Identifier: MIT
"""The choice of tokens. A shape is SEQUENCESxVOCABULARY; a pass reads the logits once.

``torch`` is the pipeline of Hugging Face's transformers: filters by sorts, a softmax, a draw. Both
draw by the same random numbers, and the logits of the chosen tokens are compared.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.measure.case import Arguments, Case, Function, bind
from transformer_kernels.measure.derive import grid, no_compiled_backward, whole
from transformer_kernels.measure.sweeps import Shape
from transformer_kernels.ops.decode._weights import uniform

_KEY = "decode/sample_logits"
_VOCABULARY = 131072
_GRID = grid(
    f"64x{_VOCABULARY} (sequences, vocabulary)", 2,
    quick=[(1, _VOCABULARY)],
    headline=[(1, _VOCABULARY), (64, _VOCABULARY)],
    small=[(2, 1000)],
    full=[(1, 50257), (1, _VOCABULARY), (8, _VOCABULARY), (64, _VOCABULARY)],
)  # fmt: skip


def _of_chosen(x: Tensor, tokens: Tensor) -> Tensor:
    return x.gather(1, tokens.unsqueeze(1)).squeeze(1)


def _seeds(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device)


def _sorted_pipeline(x: Tensor, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    scores = x if x.dtype is torch.float64 else x.float()
    if top_k:
        least = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p < 1:
        ordered, places = scores.sort(dim=-1)
        is_out = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        is_out[:, -1] = False
        scores = scores.masked_fill(is_out.scatter(1, places, is_out), -torch.inf)
    running = scores.softmax(-1).cumsum(-1)
    u = uniform(_seeds(x), torch.zeros_like(_seeds(x)), 0).to(running.dtype) * running[:, -1]
    tokens = torch.searchsorted(running, u.unsqueeze(1), right=True).squeeze(1)
    return _of_chosen(x, tokens.clamp(max=x.shape[1] - 1))


def _ours(x: Tensor, **options: Any) -> Tensor:
    tokens: Any = F.sample_logits(x, seed=0, backend=x.device.type, **options)
    return _of_chosen(x, tokens)


def _likeliest(x: Tensor) -> Tensor:
    return _of_chosen(x, x.argmax(1))


def _read_once(_: str, arguments: Arguments) -> int:
    return arguments["x"].nbytes


def _sizes(name: str, shape: Shape) -> Shape:
    return shape if name == "x" else shape[:1]


def _case(name: str, rival: Function, feature: bool = True, **options: Any) -> Case:
    ours = partial(_ours, **options)
    return Case(
        name=name, key=_KEY, inputs=("x",), parameters=(), outputs=("y",), reference=rival,
        functions={"torch": rival},
        forward={"torch": bind(rival, "x"), "ours": bind(ours, "x")},
        backward={}, compiled_backward=no_compiled_backward(name), grid=_GRID, sizes=_sizes,
        verified=whole, moved=_read_once, feature=feature,
    )  # fmt: skip


OPS = (
    _case("sample_logits", _sorted_pipeline, feature=False),
    _case("sample_greedy", _likeliest, temperature=0.0),
    _case(
        "sample_top_k_top_p", partial(_sorted_pipeline, top_k=50, top_p=0.9), top_k=50, top_p=0.9
    ),
    _case("sample_top_p", partial(_sorted_pipeline, top_p=0.9), top_p=0.9),
)
