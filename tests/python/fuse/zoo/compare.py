# SPDX-License-Identifier: MIT
"""Results of a model by name, and the two ways in which they may equal another model's."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from transformer_kernels.testing.tolerance import FACTOR, floor_of

Results = dict[str, Tensor]
GRADIENT = "gradient of "  # starts the names of gradients


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model's output, however deep, with a name each."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from tensors(inner, f"{name}.{key}".strip("."))
    elif isinstance(value, (tuple, list)):
        for key, inner in enumerate(value):
            yield from tensors(inner, f"{name}.{key}".strip("."))


def loss_of(output: Any) -> Tensor:
    """The model's own loss, or where it has none one that weighs each element differently."""
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    terms = []
    for _, y in tensors(output):
        weights = torch.linspace(-1, 1, y.numel()).sin().roll(y.numel() // 3).view(y.shape)
        terms.append((y * weights.to(y)).sum())
    return sum(terms) / len(terms)


def forward(model: nn.Module, inputs: Mapping[str, Any]) -> Results:
    with torch.no_grad():
        output = model(**inputs)
    return {name or "y": y for name, y in tensors(output)}


def gradients(model: nn.Module) -> Results:
    return {GRADIENT + n: x.grad.clone() for n, x in model.named_parameters() if x.grad is not None}


def train(model: nn.Module, inputs: Mapping[str, Any]) -> Results:
    """Runs forward and backward once: outputs, the gradients of parameters and float inputs."""
    model.zero_grad(set_to_none=True)
    leaves = {name: _leaf(x) for name, x in inputs.items()}
    output = model(**leaves)
    loss_of(output).backward()
    found = {name or "y": y.detach() for name, y in tensors(output)}
    found |= gradients(model)
    return found | {
        GRADIENT + name: x.grad for name, x in leaves.items()
        if isinstance(x, Tensor) and x.grad is not None
    }  # fmt: skip


def _leaf(x: Any) -> Any:
    is_float = isinstance(x, Tensor) and x.is_floating_point()
    return x.detach().clone().requires_grad_() if is_float else x


class Wide(TorchDispatchMode):
    """Computes in float64 also where a model asks for float32 by name, as norms do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """The inputs, however deep, with floating-point tensors of that dtype."""

    def one(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

    return tree_map(one, inputs)


def reference(stock: nn.Module, run: Any, inputs: Mapping[str, Any]) -> Results:
    """Results of ``run(model, inputs)`` in float64, from the weights that the model has."""
    model = copy.deepcopy(stock).double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # grouped products have no float64
    # The backward pass of PyTorch's flash attention is wrong for a row whose scores are all
    # finfo.min, as left padding makes them: exp(score - lse) is 1 there, for each key.
    with Wide(), sdpa_kernel(SDPBackend.MATH):
        return run(model, cast(inputs, torch.float64))


# ---- equal to the numbers -----------------------------------------------------------------------


def assert_names(ours: Results, stock: Results) -> None:
    lacking, more = sorted({*stock} - {*ours}), sorted({*ours} - {*stock})
    assert not lacking, f"has no {', '.join(lacking[:4])} ({len(lacking)} in all)"
    assert not more, f"has {', '.join(more[:4])}, which stock has not ({len(more)} in all)"


def assert_as_exact(
    ours: Results, stock: Results, exact: Results, dtype: torch.dtype | None = None
) -> None:
    """Asserts the rule of docs/numerics.md for a whole model, in which errors have many sources.

    The root of the mean squared error is at most twice that of stock. The largest error, which is
    a matter of luck, is at most four times stock's. The floor is that of the dtype in which the
    model computes, by default the result's. The terms of a gradient are as large as those of any
    gradient: the sum of a bias of keys is 0 by cancellation alone.
    """
    assert_names(ours, stock)
    assert_names(exact, stock)
    largest = _largest_gradient(exact)
    wrong = []
    for name, wanted in exact.items():
        if not wanted.is_floating_point():
            assert torch.equal(ours[name], stock[name]), name
            continue
        assert ours[name].dtype == stock[name].dtype, name
        assert ours[name].shape == stock[name].shape, name
        magnitude = largest if name.startswith(GRADIENT) else 0.0
        floor = floor_of(wanted, dtype or ours[name].dtype, magnitude)
        mine, theirs = (_errors(results[name], wanted, name) for results in (ours, stock))
        for kind, factor in (("mean", FACTOR), ("largest", 2 * FACTOR)):
            if mine[kind] > factor * theirs[kind] + floor:
                wrong.append(
                    f"{name}: {kind} error {mine[kind]:.2e} > {factor:g} x stock's "
                    f"{theirs[kind]:.2e} + floor {floor:.2e}"
                )
    assert not wrong, "\n".join(wrong[:8])


def _errors(result: Tensor, wanted: Tensor, name: str) -> dict[str, float]:
    finite = torch.isfinite(wanted)
    assert torch.equal(torch.isfinite(result), finite), f"{name}: is finite elsewhere"
    error = (result.detach().double() - wanted)[finite]
    if not error.numel():
        return {"mean": 0.0, "largest": 0.0}
    return {"mean": float(error.square().mean().sqrt()), "largest": float(error.abs().max())}


def _largest_gradient(results: Results) -> float:
    sizes = (float(x.abs().max()) for name, x in results.items() if name.startswith(GRADIENT))
    return max(sizes, default=0.0)


def assert_close(ours: Results, stock: Results, tolerance: float = 2e-5) -> None:
    """Asserts equality up to another order of summation in float32."""
    assert_names(ours, stock)
    largest = max(
        (float(x.detach().abs().max()) for n, x in stock.items() if n.startswith(GRADIENT)),
        default=0.0,
    )
    wrong = []
    for name, wanted in stock.items():
        if not wanted.is_floating_point():
            assert torch.equal(ours[name], wanted), name
            continue
        finite = torch.isfinite(wanted)
        assert torch.equal(torch.isfinite(ours[name]), finite), name
        mine, wanted = ours[name].detach().double(), wanted.detach().double()
        error = float((mine - wanted)[finite].abs().max())
        size = max(float(wanted[finite].abs().max()), largest if name.startswith(GRADIENT) else 0)
        if error > tolerance * size:
            wrong.append(f"{name}: error {error:.1e}, expected at most {tolerance * size:.1e}")
    assert not wrong, "\n".join(wrong[:8])


def assert_equal(ours: Results, stock: Results) -> None:
    """Asserts equality of every bit."""
    assert_names(ours, stock)
    wrong = [name for name, x in stock.items() if not torch.equal(_bits(ours[name]), _bits(x))]
    assert not wrong, f"bits differ: {', '.join(wrong[:8])}"


def _bits(x: Tensor) -> Tensor:
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    x = x.detach().contiguous()
    return x.view(kinds[x.element_size()]) if x.is_floating_point() and x.dim() else x
