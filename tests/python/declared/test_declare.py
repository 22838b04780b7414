# SPDX-License-Identifier: MIT
"""Properties that follow from a declaration, for every declared op and for one with all kinds."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import _library, functional
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops._declare_arguments import (
    Flag,
    Indices,
    Like,
    Number,
    Param,
    Result,
    Rows,
    as_tuple,
    saved_rows,
)
from transformer_kernels.ops._public import overridable
from transformer_kernels.ops._register import DECLARED, declare
from transformer_kernels.testing.declared import check_refusals, combinations

OPS = list(DECLARED.values())
CHEAP_CHECKS = ("test_schema", "test_faketensor")
ALL_CHECKS = (*CHEAP_CHECKS, "test_autograd_registration", "test_aot_dispatch_dynamic")
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


# ---- every declared op --------------------------------------------------------------------------


@each_op
def test_schemas_are_those_of_cpp(op: Op) -> None:
    for text in op.schemas:
        registered = getattr(torch.ops.transformer_kernels, text.partition("(")[0]).default
        assert registered._schema == torch._C.parse_schema(f"transformer_kernels::{text}")


@each_op
def test_opcheck(op: Op, device: str) -> None:
    """Schemas and fakes are checked for every choice of optional arguments; autograd and graphs,
    which take ten times as long, for the first choice and the last.
    """
    choices = list(combinations(op, device))
    for given in choices:
        thorough = given is choices[0] or given is choices[-1]
        checks = ALL_CHECKS if thorough else CHEAP_CHECKS
        opcheck = partial(torch.library.opcheck, test_utils=checks)
        results = as_tuple(op.raw.forward(*given.values()))
        opcheck(op.raw.forward, tuple(given.values()))
        if op.saved and op.has_inference:
            opcheck(op.raw.inference, tuple(given.values()))
        values = given | dict(zip((*op.returned, *op.saved), results, strict=True))
        values |= dict.fromkeys(op.may_be_absent)
        values |= {f"d{name}": torch.ones_like(values[name]) for name in op.returned}
        values |= {name: size(*given.values()) for name, size in op.measured.items()}
        for flag in (False, True):
            present = {f for name, f in op.flag_of.items() if given[name] is not None}
            absent = dict.fromkeys({*op.flag_of.values()} - present, False)
            inputs = tuple((values | absent).get(name, flag) for name in op.backward_inputs)
            opcheck(op.raw.backward, inputs)
        leaves = {
            name: value.clone().requires_grad_() if name in op.differentiable and value is not None
            else value
            for name, value in given.items()
        }  # fmt: skip
        opcheck(op.public, tuple(leaves.values()))


@each_op
@pytest.mark.parametrize("wanted", [0, -1], ids=["first", "last"])
def test_one_gradient_alone(op: Op, wanted: int) -> None:
    """The gradient of the first or last argument alone is the one computed with all others."""
    for given in combinations(op):
        names = [name for name in op.differentiable if given[name] is not None]

        def gradients(*of: str, call: Any = op.call, given: Any = given) -> tuple[Tensor, ...]:
            leaves = {name: given[name].clone().requires_grad_() for name in of}
            results = as_tuple(call(*(given | leaves).values()))
            return torch.autograd.grad(
                [r.sum() for r in results if r.requires_grad], list(leaves.values())
            )

        every = dict(zip(names, gradients(*names), strict=True))
        name = names[wanted]
        torch.testing.assert_close(gradients(name)[0], every[name])
        torch.testing.assert_close(gradients(name, call=op.public)[0], every[name])


@each_op
def test_eager_calls_have_a_source(op: Op) -> None:
    """Tracebacks and debuggers show the generated source."""
    assert f"def call({', '.join(op.names)}" in inspect.getsource(op.call)


# ---- indices ------------------------------------------------------------------------------------


def _check_labels(value: Tensor) -> None:
    Indices("labels", per_row=True).check("op", value, {"x": torch.zeros(2, 3, 8)})


@pytest.mark.parametrize("width", [torch.int32, torch.int64])
def test_indices_of_either_width(width: torch.dtype) -> None:
    _check_labels(torch.zeros(2, 3, dtype=width))


def test_indices_that_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^op: labels is int16, expected int32 or int64$"):
        _check_labels(torch.zeros(2, 3, dtype=torch.int16))
    with pytest.raises(ValueError, match=r"^op: labels is on meta, expected cpu$"):
        _check_labels(torch.zeros(2, 3, dtype=torch.int64, device="meta"))
    with pytest.raises(
        ValueError,
        match=r"^op: labels has shape \(3, 2\), expected \(2, 3\) \(one for each row of x\)$",
    ):
        _check_labels(torch.zeros(3, 2, dtype=torch.int64))


def test_indices_of_rows_are_folded_as_rows_are() -> None:
    x, labels = torch.zeros(2, 3, 8), torch.arange(6).view(2, 3)
    per_row, any_shape = Indices("labels", per_row=True), Indices("labels")
    assert per_row.fold(labels, x, 1).shape == (6,)
    assert per_row.fold(labels[0, 0], x[0, 0, 0], 1).shape == ()
    assert any_shape.fold(labels, x, 1) is labels


# ---- an op of every kind ------------------------------------------------------------------------


def _rstd(values: dict[str, Any]) -> Tensor:
    x, residual = values["x"], values["residual"]
    s = x if residual is None else x + residual
    return torch.rsqrt(s.square().mean(-1) + values["eps"])


def _probe(
    x: Tensor, residual: Tensor | None, gain: Tensor | None, eps: float, negate: bool
) -> tuple[Tensor, Tensor]:
    s = x.clone() if residual is None else x + residual
    y = s * _rstd({"x": x, "residual": residual, "eps": eps}).unsqueeze(-1)
    y = y if gain is None else y * gain
    return (-y if negate else y).to(x.dtype), s


@pytest.fixture(scope="module")
def probe() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        op = declare(
            "declare_probe",
            arguments=(
                Rows("x"), Like("residual", optional=True), Param("gain"), Number("eps", least=0.0),
                Flag("negate"),
            ),
            results=(Result("y"), Result("s"), saved_rows("rstd")),
            backward=(
                "(dy, ds, x, residual, rstd, gain, eps, negate, need_dgain)"
                " -> dx, dresidual, dgain"
            ),
            formula=_probe,
            statistics=_rstd,
        )  # fmt: skip
    yield op
    del DECLARED[op.name]


def test_probe_has_the_schemas_of_its_declaration(probe: Op) -> None:
    arguments = "Tensor x, Tensor? residual, Tensor? gain, float eps, bool negate"
    assert probe.schemas == (
        f"declare_probe_forward({arguments}) -> (Tensor y, Tensor s, Tensor rstd)",
        f"declare_probe_inference({arguments}) -> (Tensor y, Tensor s)",
        "declare_probe_backward(Tensor dy, Tensor ds, Tensor x, Tensor? residual, Tensor rstd,"
        " Tensor? gain, float eps, bool negate, bool need_dgain)"
        " -> (Tensor dx, Tensor dresidual, Tensor dgain)",
    )


def test_probe_through_all_layers(probe: Op) -> None:
    test_schemas_are_those_of_cpp(probe)
    test_opcheck(probe, "cpu")
    test_one_gradient_alone(probe, 0)
    test_one_gradient_alone(probe, -1)
    for argument in probe.arguments:
        check_refusals(probe, argument)


@pytest.mark.parametrize("way", ["call", "public"])
def test_probe_is_differentiable_twice(probe: Op, way: str) -> None:
    x, residual = (torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    gain = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, residual: Tensor, gain: Tensor) -> Any:
        return getattr(probe, way)(x, residual, gain, 0.1, True)

    assert torch.autograd.gradcheck(function, (x, residual, gain))
    assert torch.autograd.gradgradcheck(function, (x, residual, gain))
    # Also where one argument was made of another: each gradient is that of its own way.
    assert torch.autograd.gradgradcheck(lambda x: function(x, x.sin(), gain)[0], (x,))


def test_probe_in_graphs(probe: Op) -> None:
    torch._dynamo.reset()

    class Model(torch.nn.Module):
        def forward(self, x: Tensor, gain: Tensor) -> Tensor:
            y, s = probe.call(x * 2, None, gain, 0.1, False)
            return y + s

    model = Model()
    leaves = [torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)]
    expected = torch.autograd.grad(model(*leaves).sum(), leaves)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(*leaves).sum(), leaves), expected)
    exported = torch.export.export(model, tuple(leaves))
    targets = {str(node.target) for node in exported.graph.nodes}
    assert "transformer_kernels.declare_probe.default" in targets
    torch.testing.assert_close(
        torch.func.grad(lambda x: model(x, leaves[1]).sum())(leaves[0]), expected[0]
    )


def test_numbers_and_flags_of_any_type(probe: Op) -> None:
    numpy = pytest.importorskip("numpy")
    x = torch.randn(3, 5, requires_grad=True)
    expected, _ = probe.call(x, None, None, 1.0, True)
    for one in (1, True, numpy.float32(1), numpy.int64(1), torch.tensor(1.0)):
        for backend in ("auto", "reference"):
            y, _ = probe.call(x, None, None, one, numpy.bool_(True), backend)
            torch.testing.assert_close(y, expected)


def test_rows_of_no_dimension_or_too_many(probe: Op) -> None:
    for shape in ((), (1, 2) * 5):
        x = torch.randn(shape)
        for backend in ("auto", "reference"):
            y, s = probe.call(x, x, None, 0.1, False, backend)
            assert y.shape == s.shape == shape
            torch.testing.assert_close(s, 2 * x)


def test_numbers_of_any_type_in_compiled_calls(probe: Op) -> None:
    numpy = pytest.importorskip("numpy")
    torch._dynamo.reset()
    x = torch.randn(3, 5)
    expected, _ = probe.call(x, None, None, 0.5, True)
    for eps in (0.5, torch.tensor(0.5), numpy.float32(0.5)):
        compiled = torch.compile(lambda x, eps=eps: probe.call(x, None, None, eps, True)[0],
                                 backend="eager")  # fmt: skip
        torch.testing.assert_close(compiled(x), expected)
    with pytest.raises(Exception, match="declare_probe: negate is 1, expected True or False"):
        torch.compile(lambda x: probe.call(x, None, None, 0.5, 1)[0], backend="eager")(x)


def test_exported_graphs_keep_what_eager_calls_keep(probe: Op) -> None:
    """An exported graph saves the sum of add_layer_norm and neither of its terms."""
    x, residual, weight = (torch.randn(shape, requires_grad=True) for shape in ((3, 8),) * 2 + (8,))
    op = DECLARED["add_layer_norm"]
    for call in (op.call, op.public):
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, k=kept: k.append(t) or t, lambda t: t
        ):
            y, _ = call(x, residual, weight, None, 1e-5, False)
        assert not any(t.data_ptr() in (x.data_ptr(), residual.data_ptr()) for t in kept)
        torch.autograd.grad(y.sum(), (x, residual, weight))


# ---- public functions ---------------------------------------------------------------------------


class _Overriding:
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        return function, args, kwargs


def test_every_tensor_may_override() -> None:
    @overridable
    def f(x: Tensor, scale: float = 2.0, *, y: Tensor | None = None, n: int = 3) -> Any:
        """Doc."""
        return x, scale, y, n

    assert f.__doc__ == "Doc."
    assert f(1) == (1, 2.0, None, 3)
    assert f(1, 5.0, y=6, n=7) == (1, 5.0, 6, 7)
    other = _Overriding()
    assert f(other) == (f, (other,), {"scale": 2.0, "y": None, "n": 3})
    assert f(1, y=other) == (f, (1,), {"scale": 2.0, "y": other, "n": 3})
    assert str(inspect.signature(f)).startswith("(x: 'Tensor', scale: 'float' = 2.0, *, y:")


def test_an_older_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "has_kernels", True)
    with pytest.warns(RuntimeWarning, match="older than the package"):
        assert not _library._is_registered("transformer_kernels::no_such_op")
    assert _library._is_registered("transformer_kernels::softmax")


def test_functions_can_be_copied() -> None:
    for name in functional.__all__:
        function = getattr(functional, name)
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(function) is function
