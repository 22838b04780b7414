# SPDX-License-Identifier: MIT
"""linear_cross_entropy: T rows, K terms, V classes, forward and backward.

``torch`` stores the logits; in ``chunked_linear_cross_entropy`` it is PyTorch's own loss in chunks
(since 2.13).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from transformer_kernels import functional as F
from transformer_kernels.measure.case import Arguments, Case, Function, differentiate
from transformer_kernels.measure.derive import derive, grid, whole, without
from transformer_kernels.measure.sweeps import Shape, of_rows
from transformer_kernels.ops.linear_loss._ops import LINEAR_CROSS_ENTROPY
from transformer_kernels.ops.loss._formula import MEAN

_GPT2, _LLAMA = 50257, 128256
_OPERANDS = ("x", "linear_weight", "target")
_OPTIONS = {"ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0, "softcap": 0.0,
            "reduction": MEAN}  # fmt: skip
_GRID = grid(
    "2048x768x50257 (rows, terms, classes)", 3, of_model=of_rows(lambda width: (width, _GPT2)),
    quick={"cpu": [(1024, 256, _GPT2)], "cuda": [(8192, 1024, _GPT2)]},
    headline={
        "cpu": [(1024, 256, _GPT2), (2048, 768, _GPT2)],
        "cuda": [(16384, 768, _GPT2), (8192, 4096, _LLAMA)],
    },
    small={"cpu": [(64, 256, _GPT2)], "cuda": [(512, 1024, _GPT2)]},
    full={
        "cpu": [(rows, terms, _GPT2) for terms in (256, 768) for rows in (1024, 2048)],
        "cuda": [(16384, 768, _GPT2), (8192, 1024, _GPT2), (8192, 4096, _LLAMA)],
    },
)  # fmt: skip


def _sizes(name: str, shape: Shape) -> Shape:
    rows, terms, classes = shape
    return {"x": (rows, terms), "linear_weight": (classes, terms), "target": (rows,)}.get(name, ())


def _scaled(arguments: Arguments) -> Arguments:
    """A weight that keeps the size of its input, as one of a model does."""
    return {"linear_weight": arguments["linear_weight"] * arguments["x"].shape[-1] ** -0.5}


def _chunked(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions(allow_retain_graph=True)
    loss: Tensor = functional.linear_cross_entropy(x, weight, target, options=options)
    return loss


def _reference(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    logits = x @ weight.t()
    own = logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (torch.logsumexp(logits, -1) - own).mean()


def _case(name: str, torchs: Function | None = None, **of: Any) -> Case:
    """A case; a backward pass by itself computes the logits again."""
    alone = partial(F.linear_cross_entropy, gradient="backward")
    return derive(
        LINEAR_CROSS_ENTROPY, "linear_loss/linear_cross_entropy", _OPERANDS, name=name,
        fixed=_OPTIONS, integers=("target",), reference=_reference, ours=F.linear_cross_entropy,
        torchs=torchs, raw=False, outputs=("loss",), save=_scaled, verified=whole, grid=_GRID,
        sizes=_sizes,
        backwards={"ours": differentiate(alone, _OPERANDS, ("dloss",))}, **of,
    )  # fmt: skip


_PLAIN = _case("linear_cross_entropy")
_CHUNKED = _case(
    "chunked_linear_cross_entropy",
    torchs=_chunked,
    compiled=lambda compiled: differentiate(
        compiled(_PLAIN.functions["torch"]), _OPERANDS, ("dloss",)
    ),
    feature=True,
)
if not hasattr(functional, "linear_cross_entropy"):
    _CHUNKED = without(_CHUNKED, "torch")

OPS = (_PLAIN, _CHUNKED)
