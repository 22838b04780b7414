# SPDX-License-Identifier: MIT
"""The norms of ``dropout(x + x_bias) + residual``: one pass gives the results of separate ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.testing.inputs import LAYOUTS, randn
from transformer_kernels.testing.reference import layer_norm, rms_norm
from transformer_kernels.testing.tolerance import assert_close_to_reference

P, EPS = 0.3, 1e-5
Both = tuple[Tensor, Tensor]


def _seed() -> Tensor:
    return torch.tensor([11, 7])


def _layer_norm(
    x: Tensor, x_bias: Any, residual: Tensor, weight: Any, bias: Any, **options: Any
) -> Both:
    options = {"p": P, "seed": _seed(), **options}
    return F.bias_dropout_add_layer_norm(x, x_bias, residual, weight, bias, eps=EPS, **options)


def _rms_norm(
    x: Tensor, x_bias: Any, residual: Tensor, weight: Any, bias: Any, **options: Any
) -> Both:
    options = {"p": P, "seed": _seed(), **options}
    return F.bias_dropout_add_rms_norm(x, x_bias, residual, weight, bias=bias, eps=EPS, **options)


FUSED = {"layer_norm": _layer_norm, "rms_norm": _rms_norm}
TORCH = {
    "layer_norm": lambda s, w, b: torch.nn.functional.layer_norm(s, s.shape[-1:], w, b, EPS),
    "rms_norm": lambda s, w, b: torch.nn.functional.rms_norm(s, s.shape[-1:], w, EPS) + b,
}
EXACT = {"layer_norm": layer_norm, "rms_norm": rms_norm}
each = pytest.mark.parametrize("name", FUSED)


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[Tensor]:
    """Returns x, x_bias, residual, weight and bias."""
    row = shape[-1:]
    return [randn(size, dtype, device).requires_grad_() for size in (shape, row, shape, row, row)]


def _apart(norm: Callable[..., Tensor], *inputs: Tensor, p: float = P) -> Both:
    """Both results from separate operations with dropout's mask, in the dtypes of the inputs."""
    x, x_bias, residual, weight, bias = inputs
    ones = torch.ones_like(x, dtype=torch.float64)
    factors = F.dropout(ones, p, seed=_seed()).to(torch.promote_types(x.dtype, torch.float32))
    s = ((x + x_bias) * factors + residual).to(residual.dtype)
    return norm(s, weight, bias).to(x.dtype), s


def _check(
    name: str, inputs: list[Tensor], gradients: list[Tensor | None], backend: str = "auto",
    p: float = P,
) -> None:  # fmt: skip
    """Compares results, and the gradients of all inputs, with float64; dtypes are PyTorch's. A
    gradient of a result may be None: then that result is not differentiated."""
    results = FUSED[name](*inputs, backend=backend, p=p)
    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in inputs]

    def exact_norm(s: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return EXACT[name](s, weight, bias, eps=EPS)

    expected = _apart(exact_norm, *exact_inputs, p=p)
    theirs = _apart(TORCH[name], *inputs, p=p)
    for what, *group in zip(("y", "sum"), results, theirs, expected, strict=True):
        assert group[0].dtype is group[1].dtype, what
        assert_close_to_reference(*group, what, magnitude=4.0)

    def gradients_of(results: Both, leaves: list[Tensor]) -> list[Tensor]:
        pairs = [
            (r, g.to(r.dtype)) for g, r in zip(gradients, results, strict=True) if g is not None
        ]
        of, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(of, leaves, given, allow_unused=True)
        return [
            torch.zeros_like(leaf) if gradient is None else gradient
            for gradient, leaf in zip(found, leaves, strict=True)
        ]

    ours = gradients_of(results, inputs)
    names = ("dx", "dx_bias", "dresidual", "dweight", "dbias")
    rows = inputs[0].numel() // inputs[0].shape[-1]
    for what, leaf, *group in zip(
        names, inputs, ours, gradients_of(theirs, inputs), gradients_of(expected, exact_inputs),
        strict=True,
    ):  # fmt: skip
        assert group[0].dtype is leaf.dtype, what
        assert_close_to_reference(*group, what, magnitude=4.0 * max(rows, 1))


@each
@pytest.mark.parametrize("backend", ["auto", "reference", "triton"])
@pytest.mark.parametrize("shape", [(7, 40), (5, 33), (2, 3, 1032)], ids=str)
def test_forward_and_backward(
    name: str, shape: tuple[int, ...], backend: str, dtype: torch.dtype, device: str
) -> None:
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    inputs = _inputs(shape, dtype, device)
    _check(name, inputs, [randn(shape, dtype, device) for _ in range(2)], backend)


# ---- a branch of 16 bits beside a residual of float32, as under autocast -------------------------

NARROW = pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)


def _mixed_inputs(shape: tuple[int, ...], narrow: torch.dtype, device: str) -> list[Tensor]:
    x, *others = _inputs(shape, torch.float32, device)
    return [x.detach().to(narrow).requires_grad_(), *others]


def _mixed_gradients(inputs: list[Tensor]) -> list[Tensor | None]:
    x, _, residual, *_ = inputs
    return [randn(t.shape, t.dtype, str(t.device)) for t in (x, residual)]


@each
@NARROW
@pytest.mark.parametrize("backend", ["auto", "reference", "triton"])
@pytest.mark.parametrize(
    "shape", [(7, 40), (5, 33), (9, 768), (2, 3, 1032), (3, 4100), (300, 72)], ids=str
)
def test_mixed(
    name: str, shape: tuple[int, ...], backend: str, narrow: torch.dtype, device: str
) -> None:
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
        if device == "cpu":  # interpreted, a tenth of a second a row
            shape = (min(shape[0], 30), *shape[1:])
    inputs = _mixed_inputs(shape, narrow, device)
    _check(name, inputs, _mixed_gradients(inputs), backend)


@each
@NARROW
@pytest.mark.parametrize("p", [0.0, 0.1, 1.0])
def test_mixed_probabilities(name: str, p: float, narrow: torch.dtype, device: str) -> None:
    inputs = _mixed_inputs((8, 768), narrow, device)
    _check(name, inputs, _mixed_gradients(inputs), p=p)


@each
@NARROW
@pytest.mark.parametrize("absent", [0, 1])
def test_mixed_results_alone(name: str, absent: int, narrow: torch.dtype, device: str) -> None:
    """Only one of the results is differentiated."""
    inputs = _mixed_inputs((8, 768), narrow, device)
    gradients = _mixed_gradients(inputs)
    gradients[absent] = None
    _check(name, inputs, gradients)


@each
@NARROW
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cols", [24, 33])
def test_mixed_layouts(name: str, cols: int, layout: str, narrow: torch.dtype, device: str) -> None:
    def laid_out(tensor: Tensor) -> Tensor:
        return LAYOUTS[layout](tensor.detach()).requires_grad_()

    x, x_bias, residual, weight, bias = _mixed_inputs((4, 3, cols), narrow, device)
    inputs = [laid_out(x), x_bias, laid_out(residual), weight, bias]
    gradients = _mixed_gradients(inputs)
    _check(name, inputs, [LAYOUTS[layout](g) for g in gradients if g is not None])


@each
@NARROW
@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 33), (3, 0)], ids=str)
def test_mixed_of_nothing(
    name: str, shape: tuple[int, ...], narrow: torch.dtype, device: str
) -> None:
    inputs = _mixed_inputs(shape, narrow, device)
    y, s = FUSED[name](*inputs)
    assert (y.shape, y.dtype, s.shape, s.dtype) == (shape, narrow, shape, torch.float32)
    for gradient, leaf in zip(
        torch.autograd.grad((y, s), inputs, (y, s), allow_unused=True), inputs, strict=True
    ):
        assert gradient is not None
        assert gradient.dtype is leaf.dtype
        assert torch.equal(gradient, torch.zeros_like(leaf))


@each
@NARROW
@pytest.mark.parametrize("p", [0.0, P])
def test_mixed_without_parameters(name: str, p: float, narrow: torch.dtype, device: str) -> None:
    x, _, residual, *_ = _mixed_inputs((6, 48), narrow, device)
    y, s = FUSED[name](x, None, residual, None, None, p=p)
    wide = x.detach().float().requires_grad_()
    other_y, other_s = FUSED[name](wide, None, residual, None, None, p=p)
    assert (y.dtype, s.dtype) == (narrow, torch.float32)
    torch.testing.assert_close(s, other_s)
    torch.testing.assert_close(y, other_y.to(narrow))
    dy, ds = randn((6, 48), narrow, device), randn((6, 48), torch.float32, device)
    dx, dresidual = torch.autograd.grad((y, s), (x, residual), (dy, ds))
    of_wide = torch.autograd.grad((other_y, other_s), (wide, residual), (dy.float(), ds))
    torch.testing.assert_close(dx, of_wide[0].to(narrow))
    torch.testing.assert_close(dresidual, of_wide[1])


@each
def test_mixed_under_autocast(name: str, device: str) -> None:
    """A product's result goes in, and the next product's operand comes out, without a cast."""
    x, x_bias, residual, weight, bias = _inputs((6, 48), torch.float32, device)
    square = randn((48, 48), torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        product = x @ square
        y, s = FUSED[name](product, x_bias, residual, weight, bias)
        after = y @ square
    assert (product.dtype, y.dtype, s.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    after.float().square().sum().backward()
    for leaf in (x, x_bias, residual, weight, bias):
        assert leaf.grad is not None
        assert leaf.grad.dtype is torch.float32


@each
@NARROW
def test_mixed_compiled(name: str, narrow: torch.dtype, device: str) -> None:
    inputs = _mixed_inputs((8, 64), narrow, device)

    def call(*inputs: Tensor) -> Both:
        found: Both = FUSED[name](*inputs)
        return found

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    gradients = _mixed_gradients(inputs)
    for wanted in ((0, 1), (0,), (1,)):
        found, expected = compiled(*inputs), call(*inputs)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype is b.dtype
            assert torch.equal(a, b)
        of_both = [
            torch.autograd.grad(
                [results[i] for i in wanted], inputs, [gradients[i] for i in wanted],
                allow_unused=True, materialize_grads=True,
            )
            for results in (found, expected)
        ]  # fmt: skip
        for a, b, leaf in zip(*of_both, inputs, strict=True):
            assert a.dtype is leaf.dtype
            # Where y has no gradient, zeros stand for it in x's dtype or the residual's: another
            # kernel, which may sum rows in another order.
            torch.testing.assert_close(a, b)


@each
@NARROW
def test_mixed_fakes(name: str, narrow: torch.dtype, device: str) -> None:
    inputs = [tensor.detach() for tensor in _mixed_inputs((8, 64), narrow, device)]
    member = getattr(torch.ops.transformer_kernels, f"bias_dropout_add_{name}_forward")
    x, x_bias, residual, weight, bias = inputs
    arguments = (x, x_bias, residual, weight, bias, _seed(), P, EPS, False)
    torch.library.opcheck(member.default, arguments)
    y, s, *statistics = member(*arguments)
    backward = getattr(torch.ops.transformer_kernels, f"bias_dropout_add_{name}_backward")
    for dsum in (s, None):
        for needs in ((True, True, True), (False, False, False)):
            given = (x_bias, weight, bias, _seed(), P, False, *needs)
            torch.library.opcheck(backward.default, (y, dsum, s, *statistics, *given))


@each
@pytest.mark.parametrize(
    ("x_dtype", "residual_dtype", "parameter_dtype", "message"),
    [
        ("float32", "bfloat16", "float32", "residual is bfloat16, expected float32"),
        ("float64", "float32", "float64", "residual is float32, expected float64"),
        ("float32", "float64", "float32", "residual is float64, expected float32"),
        ("bfloat16", "float64", "float32", "residual is float64, expected bfloat16 or float32"),
        ("bfloat16", "float16", "float32", "residual is float16, expected bfloat16 or float32"),
        ("bfloat16", "float32", "bfloat16", "bfloat16, expected float32 (the dtype of residual)"),
        ("float16", "float32", "float64", "float64, expected float32 (the dtype of residual)"),
    ],
)  # fmt: skip
def test_mixed_dtypes_that_are_refused(
    name: str, x_dtype: str, residual_dtype: str, parameter_dtype: str, message: str, device: str
) -> None:  # fmt: skip
    dtypes = [x_dtype, parameter_dtype, residual_dtype, parameter_dtype, parameter_dtype]
    shapes = [(4, 8), (8,), (4, 8), (8,), (8,)]
    inputs = [randn(s, getattr(torch, d), device) for s, d in zip(shapes, dtypes, strict=True)]
    with pytest.raises(TypeError) as caught:
        FUSED[name](*inputs)
    assert str(caught.value).startswith(f"bias_dropout_add_{name}: ")
    assert message in str(caught.value)


@each
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(name: str, layout: str, device: str) -> None:
    x, x_bias, residual, weight, bias = _inputs((4, 3, 24), torch.float32, device)
    inputs = [LAYOUTS[layout](x.detach()), x_bias, LAYOUTS[layout](residual.detach()), weight, bias]
    dense = [tensor.contiguous() for tensor in inputs]
    for found, expected in zip(FUSED[name](*inputs), FUSED[name](*dense), strict=True):
        torch.testing.assert_close(found, expected)


@each
def test_derivatives(name: str, device: str) -> None:
    inputs = _inputs((3, 5), torch.float64, device)
    assert torch.autograd.gradcheck(FUSED[name], inputs)
    assert torch.autograd.gradgradcheck(FUSED[name], inputs)


@each
def test_one_result_alone(name: str, device: str) -> None:
    """Post-norm models use y alone, the last block of a pre-norm model uses the sum."""
    inputs = _inputs((6, 48), torch.float64, device)
    for index in (0, 1):
        result = FUSED[name](*inputs)[index]
        expected = _apart(TORCH[name], *inputs)[index]
        dy = randn((6, 48), torch.float64, device)
        found = torch.autograd.grad(result, inputs, dy, allow_unused=True)
        exact = torch.autograd.grad(expected, inputs, dy, allow_unused=True)
        for gradient, wanted, leaf in zip(found, exact, inputs, strict=True):
            wanted = torch.zeros_like(leaf) if wanted is None else wanted
            gradient = torch.zeros_like(leaf) if gradient is None else gradient
            torch.testing.assert_close(gradient, wanted)


@each
def test_without_bias_and_weight(name: str, device: str) -> None:
    x, _, residual, *_ = _inputs((6, 48), torch.float32, device)
    y, s = FUSED[name](x, None, residual, None, None)
    torch.testing.assert_close(s, F.bias_dropout_add(x, None, residual, P, seed=_seed()))
    (expected,) = (EXACT[name](s.double(), None, None, eps=EPS),)
    torch.testing.assert_close(y, expected.float())


@each
def test_parameters_of_float32(name: str, device: str) -> None:
    """x_bias has the rows' dtype beside float32 weights, and the other way round."""
    x, x_bias, residual, weight, bias = _inputs((6, 48), torch.bfloat16, device)
    wide = [parameter.detach().float().requires_grad_() for parameter in (weight, bias)]
    y, _ = FUSED[name](x, x_bias, residual, *wide)
    dx_bias, dweight = torch.autograd.grad(y.float().sum(), (x_bias, wide[0]))
    assert (dx_bias.dtype, dweight.dtype) == (torch.bfloat16, torch.float32)
    y, _ = FUSED[name](x, x_bias.detach().float(), residual, weight, bias)
    assert y.dtype is torch.bfloat16


@each
@pytest.mark.parametrize("x_bias", [False, True])
def test_evaluation(name: str, x_bias: bool, device: str) -> None:
    x, given, residual, weight, bias = _inputs((6, 48), torch.float32, device)
    added = given if x_bias else None
    y, s = FUSED[name](x, added, residual, weight, bias, training=False)
    torch.testing.assert_close(s, x + residual + (given if x_bias else 0))
    torch.testing.assert_close(y, TORCH[name](s, weight, bias))


@each
def test_compiled(name: str, device: str) -> None:
    inputs = _inputs((8, 64), torch.float32, device)

    def call(*inputs: Tensor) -> Both:
        found: Both = FUSED[name](*inputs)
        return found

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(*inputs), call(*inputs), strict=True):
        assert torch.equal(found, expected)
    sum(result.sum() for result in compiled(*inputs)).backward()  # type: ignore[union-attr]
    assert all(tensor.grad is not None for tensor in inputs)


@each
def test_draws_anew(name: str, device: str) -> None:
    inputs = _inputs((8, 64), torch.float32, device)
    torch.manual_seed(5)
    _, first = FUSED[name](*inputs, seed=None)
    _, second = FUSED[name](*inputs, seed=None)
    torch.manual_seed(5)
    assert not torch.equal(first, second)
    assert torch.equal(first, FUSED[name](*inputs, seed=None)[1])
