# SPDX-License-Identifier: MIT
"""linear, linear_act with GPT-2's activation and gated_linear with Llama's: M rows, K terms, N
columns; MLPs of them: M rows, K features, N hidden features; quantized_linear in 4 and in 8 bits.

``packed_linear`` and ``packed_linear_act`` run our product on every device, whatever would be
chosen. ``onednn`` is the operator in PyTorch's wheel that its compiler calls. The weights of gate
and up are two parameters, as in Hugging Face's models. For quantised weights, ``torch`` multiplies
by the same weight, dequantised beforehand, and ``llama`` is llama.cpp's product of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from transformer_kernels import functional as F
from transformer_kernels.bench.rivals import llama, quack
from transformer_kernels.measure.case import Arguments, Case, Function, bind
from transformer_kernels.measure.derive import derive, flops_of_product, grid, whole
from transformer_kernels.measure.sweeps import Grid, Shape, of_rows
from transformer_kernels.measure.timing import Call
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops.linear._mlp_ops import GATED_MLP, MLP
from transformer_kernels.ops.linear._ops import LINEAR, LINEAR_ACT
from transformer_kernels.ops.linear._quantized import QUANTIZED_LINEAR
from transformer_kernels.ops.linear.linear import GATED_NUMBERS, NUMBERS

_GELU, _SWIGLU = NUMBERS["gelu_tanh"], GATED_NUMBERS["swiglu"]
_LAYER, _GATED = ("x", "weight", "bias"), ("x", "weight", "up_weight")

# ---- shapes -------------------------------------------------------------------------------------

# Rows, features and hidden features of MLPs; the last four are models'.
_SQUARE, _DEMO, _FC1, _FC2 = (512, 512, 512), (1024, 192, 768), (1024, 768, 3072), (1024, 3072, 768)
_WIDE, _ODD = (4096, 1024, 4096), (511, 736, 1504)
_MODELS: list[Shape] = [
    (4096, 768, 3072), (16384, 1024, 4096), (8192, 4096, 16384), (2048, 4096, 16384),
]  # fmt: skip
# The product up in an MLP, to four times the model's width.
_FOURFOLD = of_rows(lambda width: (width, 4 * width))
MLP_GRID = grid(
    "1024x768x3072 (rows, features, hidden features)", 3, of_model=_FOURFOLD,
    quick=[_SQUARE],
    headline={"cuda": _MODELS, "cpu": [_DEMO, _FC1]},
    small=[(128, 768, 3072)],
    full=[_DEMO, _FC1, _ODD],
)  # fmt: skip
_LAYER_GRID = grid(
    "1024x768x3072 (rows, terms, columns)", 3, of_model=_FOURFOLD,
    quick=[_SQUARE, _FC1],
    # The MLPs of models have a product up and one down.
    headline={
        "cuda": [shape for m, k, n in _MODELS for shape in ((m, k, n), (m, n, k))],
        "cpu": [_SQUARE, _DEMO, _FC1, _FC2, _WIDE],
    },
    small=[
        (1, 4096, 4096), (4, 4096, 4096), (16, 4096, 4096), (1, 768, 3072), (128, 768, 768),
    ],
    full=[_SQUARE, _DEMO, _FC1, _FC2, _WIDE, (2048, 256, 1024), _ODD],
)  # fmt: skip
_SMALL_GATED = [(512, 256, 704), (1024, 192, 768)]
_GATED_GRID = grid(
    "1024x768x3072 (rows, features, hidden features)", 3, of_model=_FOURFOLD,
    quick=_SMALL_GATED[:1],
    # The last two are Llama's with 7 and 8 billion parameters.
    headline={"cuda": [*_MODELS, (4096, 4096, 11008), (4096, 4096, 14336)], "cpu": _SMALL_GATED},
    small=[(1, 4096, 14336), (16, 4096, 14336), (128, 768, 2048)],
    full=[*_SMALL_GATED, _ODD],
)  # fmt: skip


def sizes_by(letters: Mapping[str, str], others: str) -> Callable[[str, Shape], Shape]:
    """Maps tensors to sizes, given as letters: rows T, terms or features H, columns or hidden
    features F."""

    def sizes(name: str, shape: Shape) -> Shape:
        by_letter = dict(zip("THF", shape, strict=True))
        return tuple(by_letter[letter] for letter in letters.get(name, others))

    return sizes


_WEIGHTS = {"weight": "FH", "up_weight": "FH", "bias": "F", "down_weight": "HF", "down_bias": "H"}
_of_layer = sizes_by({"x": "TH", **_WEIGHTS}, "TF")
_of_mlp = sizes_by(_WEIGHTS, "TH")

# ---- layers -------------------------------------------------------------------------------------


def scaled(names: tuple[str, ...], arguments: Arguments) -> Arguments:
    """Weights that keep the size of their input, as those of a model do."""
    return {name: arguments[name] * arguments[name].shape[-1] ** -0.5 for name in names}


def packed(function: Callable[..., Tensor]) -> Function:
    """Runs our product, whatever would be chosen."""

    def run(x: Tensor, *operands: Tensor) -> Tensor:
        return function(x, *operands, backend=x.device.type)

    return run


def _case(
    op: Op, key: str, inputs: tuple[str, ...], ours: Function, grid: Grid, **of: Any
) -> Case:  # fmt: skip
    """A layer whose operands all have a gradient."""
    weights = tuple(name for name in inputs if name.endswith("weight"))
    return derive(
        op, f"linear/{key}", inputs, ours=ours, raw=False, grid=grid,
        save=partial(scaled, weights), verified=whole, **of,
    )  # fmt: skip


def _onednn(activation: tuple[Any, ...]) -> Function:
    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, *activation)
        return y

    return run


def _layers() -> Iterator[Case]:
    """The cases of each product: with the choice, and with our product regardless of it."""
    in_onednn: dict[str, tuple[Any, ...]] = {
        "linear": ("none", [], ""),
        "linear_act": ("gelu", [], "tanh"),
    }
    for op, ours, by_quack in (
        (LINEAR, F.linear, quack.linear),
        (LINEAR_ACT, partial(F.linear_act, activation="gelu_tanh"), quack.linear_gelu),
    ):
        rivals = {"onednn": _onednn(in_onednn[op.name]), **quack.providers(by_quack)}
        for is_packed in (False, True):
            yield _case(
                op, "linear", _LAYER, packed(ours) if is_packed else ours, _LAYER_GRID,
                name=f"packed_{op.name}" if is_packed else op.name, fixed={"activation": _GELU},
                forward={who: bind(run, *_LAYER) for who, run in rivals.items()},
                sizes=_of_layer, few_rows=True, triton=not is_packed, feature=is_packed,
            )  # fmt: skip


def _quack_gated(arguments: Arguments, *, tuned: bool) -> Call:
    both = quack.in_turn(arguments["weight"], arguments["up_weight"], 0)
    return partial(quack.linear_swiglu, arguments["x"], both, tuned=tuned)


# ---- quantised weights --------------------------------------------------------------------------

_GROUP = 128
_FEW: list[Shape] = [(1, 4096, 4096), (4, 4096, 4096), (16, 4096, 4096)]
_QUANTISED_GRID = grid(
    "1x4096x4096 (rows, terms, columns)", 3, fits=lambda sizes: sizes[1] % _GROUP == 0,
    of_model=_FOURFOLD,
    quick=_FEW[:1],
    headline=[*_FEW, (1, 4096, 14336), (1, 768, 3072)],
    small=[(1, 768, 768), (1, 768, 3072), (4, 768, 3072)],
    full=[*_FEW, (64, 4096, 4096), (512, 4096, 4096)],
)  # fmt: skip


def _packed_numbers(bits: int, shape: Shape) -> Tensor:
    _, terms, columns = shape
    if bits == 8:
        return torch.randint(-127, 128, (columns, terms), dtype=torch.int8)
    return torch.randint(0, 256, (columns, terms // 2), dtype=torch.uint8)


def _scales(bits: int, shape: Shape) -> Tensor:
    """Scales that preserve the size of the input."""
    _, terms, columns = shape
    return (torch.rand(columns, terms // _GROUP) + 0.5) * terms**-0.5 / 2 ** (bits - 2)


def _dequantised_beforehand(arguments: Arguments) -> Call:
    x = arguments["x"]
    packed, scales = arguments["packed"], arguments["scales"]
    return partial(functional.linear, x, F.dequantize_weight(packed, scales, dtype=x.dtype))


def _in_llama(arguments: Arguments) -> Call:
    return llama.Product(arguments["x"], arguments["packed"], arguments["scales"])


def _quantised(name: str, bits: int) -> Case:
    passes = {"forward": 1, "backward": 1, "both": 2}
    return derive(
        QUANTIZED_LINEAR, "linear/quantized_linear", ("x",), name=name,
        ours=lambda packed, scales, x, **on: F.quantized_linear(x, packed, scales, **on),
        forward={"torch": _dequantised_beforehand, "llama": _in_llama}, raw=False,
        grid=_QUANTISED_GRID,
        sizes=sizes_by({"x": "TH"}, "TF"),
        flops=lambda pass_, shape: flops_of_product(passes[pass_], pass_, shape), verified=whole,
        indices={"packed": partial(_packed_numbers, bits), "scales": partial(_scales, bits)},
        feature=bits == 8,
    )  # fmt: skip


OPS = (
    _case(
        MLP, "linear", (*_LAYER, "down_weight", "down_bias"),
        partial(F.mlp, activation="gelu_tanh"), MLP_GRID, fixed={"activation": _GELU},
        sizes=_of_mlp, few_rows=True, feature=True,
    ),
    *_layers(),
    _case(
        GATED_MLP, "gated_linear", _GATED, F.gated_linear, _GATED_GRID, name="gated_linear",
        fixed={"activation": _SWIGLU}, forward=quack.providers(_quack_gated), sizes=_of_layer,
    ),
    _case(
        GATED_MLP, "gated_linear", (*_GATED, "down_weight"), F.gated_mlp, _GATED_GRID,
        fixed={"activation": _SWIGLU}, sizes=_of_mlp, feature=True,
    ),
    _quantised("quantized_linear", 4),
    _quantised("int8_linear", 8),
)  # fmt: skip
