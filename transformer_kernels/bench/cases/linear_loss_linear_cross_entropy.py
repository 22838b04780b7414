# SPDX-License-Identifier: MIT
"""linear_cross_entropy: T rows, K terms, V classes, forward and backward.

``torch`` holds the logits; in ``chunked_linear_cross_entropy`` it is PyTorch's own loss in chunks
(since 2.13).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as in_torch

from transformer_kernels import functional as F
from transformer_kernels.measure.case import Arguments, Case, Function, Part, differentiate
from transformer_kernels.measure.sweeps import Grid, Shape

_GPT2, _LLAMA = 50257, 128256
_OPERANDS = ("x", "weight", "target")
_PRODUCTS = {"forward": 1, "backward": 2, "both": 3}


def _on_cpu(*shapes: Shape, gpu: tuple[Shape, ...]) -> Any:
    return lambda device, _: list(shapes if device.type == "cpu" else gpu)


_GRID = Grid(
    forms="2048x768x50257 (rows, terms, classes)",
    fold=lambda sizes: sizes if len(sizes) == 3 else None,
    sweeps={
        "quick": _on_cpu((1024, 256, _GPT2), gpu=((8192, 1024, _GPT2),)),
        "headline": _on_cpu(
            (1024, 256, _GPT2), (2048, 768, _GPT2),
            gpu=((16384, 768, _GPT2), (8192, 4096, _LLAMA)),
        ),
        "small": _on_cpu((64, 256, _GPT2), gpu=((512, 1024, _GPT2),)),
        "full": _on_cpu(
            (1024, 256, _GPT2), (2048, 256, _GPT2), (1024, 768, _GPT2), (2048, 768, _GPT2),
            gpu=((16384, 768, _GPT2), (8192, 1024, _GPT2), (8192, 4096, _LLAMA)),
        ),
    },
)  # fmt: skip


def _sizes(name: str, shape: Shape) -> Shape:
    rows, terms, classes = shape
    return {"x": (rows, terms), "weight": (classes, terms), "target": (rows,)}.get(name, ())


def _flops(pass_: str, shape: Shape) -> float:
    rows, terms, classes = shape
    return 2.0 * rows * terms * classes * _PRODUCTS[pass_]


def _scaled(arguments: Arguments) -> Arguments:
    """A weight that keeps the size of its input, as one of a model does."""
    return {"weight": arguments["weight"] * arguments["x"].shape[-1] ** -0.5}


def _whole(_: Arguments) -> Part:
    """A mean is one of all rows."""
    return lambda _, tensor: tensor


def _of_logits(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return in_torch.cross_entropy(in_torch.linear(x, weight), target)


def _chunked(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions(allow_retain_graph=True)
    loss: Tensor = in_torch.linear_cross_entropy(x, weight, target, options=options)
    return loss


def _reference(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    logits = x @ weight.t()
    return (
        torch.logsumexp(logits, -1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    ).mean()


def _op(name: str, functions: dict[str, Function]) -> Case:
    # The passes one by one, the second of which computes the logits again.
    alone = functions | {"ours": partial(F.linear_cross_entropy, gradient="backward")}
    return Case(
        name=name,
        key="linear_loss/linear_cross_entropy",
        inputs=_OPERANDS,
        integers=("target",),
        parameters=(),
        outputs=("loss",),
        backward_reads=("dloss", *_OPERANDS),
        reference=_reference,
        save=_scaled,
        functions=functions,
        backward={
            provider: differentiate(function, _OPERANDS, ("dloss",))
            for provider, function in alone.items()
        },
        compiled_backward=lambda compiled: differentiate(
            compiled(_of_logits), _OPERANDS, ("dloss",)
        ),
        gradients=2,
        grid=_GRID,
        sizes=_sizes,
        flops=_flops,
        verified=_whole,
        feature=name.startswith("chunked"),
    )


_OURS: dict[str, Function] = {"ours": F.linear_cross_entropy}
_TORCHS: dict[str, Function] = (
    {"torch": _chunked} if hasattr(in_torch, "linear_cross_entropy") else {}
)

OPS = (
    _op("linear_cross_entropy", {"torch": _of_logits, **_OURS}),
    _op("chunked_linear_cross_entropy", {**_TORCHS, **_OURS}),
)
