# SPDX-License-Identifier: MIT
"""The matrix products of an MLP one by one, and cuBLASLt's algorithms for them."""

from __future__ import annotations

import ctypes

import pytest
import torch

from transformer_kernels.bench import cases, providers
from transformer_kernels.bench.cases import linear_product
from transformer_kernels.bench.rivals import cublaslt
from transformer_kernels.bench.rivals.cublaslt import Heuristic, Layout, layouts
from transformer_kernels.measure import table
from transformer_kernels.measure.case import PASSES, Problem, UnsupportedError
from transformer_kernels.measure.verify import Reference

CPU = torch.device("cpu")
SHAPE = (40, 24, 56)
BARE = ("fc1_product", "fc2_product", "dgrad_product", "wgrad_product")
SIZES = {
    "fc1_product": ((40, 24), (56, 24), (40, 56)),
    "fc2_product": ((40, 56), (24, 56), (40, 24)),
    "dgrad_product": ((40, 56), (56, 24), (40, 24)),
    "wgrad_product": ((40, 56), (40, 24), (56, 24)),
}


def _made(name, dtype=torch.float32, pass_="forward", shape=SHAPE, device=CPU):
    op = cases.all_ops()[name]
    return op, op.make(Problem(name, pass_, dtype, dtype, shape), device)


def _offered(*names):
    return [(op.name, name) for op in linear_product.OPS for name in names if name in op.providers]


@pytest.mark.parametrize(("name", "provider"), _offered("torch", "compile", "packed", "ours"))
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_provider_computes_the_product(name, provider, precision):
    op, arguments = _made(name, precision)
    with torch.no_grad():
        call = op.build(provider, "forward", lambda f: f)(arguments)
        allowance = 1 if provider in ("packed", "ours") else 4
        assert Reference(op, "forward", arguments).check(call, allowance) > 0


@pytest.mark.parametrize("op", linear_product.OPS, ids=lambda op: op.name)
def test_a_product_has_a_reference_of_every_pass(op):
    """A run first asks for the reference of every pass, and then which provider has the pass."""
    for pass_ in PASSES:
        op, arguments = _made(op.name, pass_=pass_)
        Reference(op, pass_, arguments)
    for provider in ("torch", "compile", "ours"):
        with pytest.raises(UnsupportedError, match=f"{provider} has no {op.name} backward"):
            op.build(provider, "backward", lambda f: f)


@pytest.mark.parametrize("name", BARE)
def test_a_bare_product_has_the_sizes_of_an_mlp(name):
    op, arguments = _made(name)
    *inputs, result = SIZES[name]
    assert [tuple(arguments[of].shape) for of in op.inputs] == inputs
    call = op.build("torch", "forward", lambda f: f)(arguments)
    assert call().shape == result
    assert op.flops("forward", SHAPE) == 2 * 40 * 24 * 56
    assert op.bytes_moved("forward", arguments) == 4 * (40 * 24 + 40 * 56 + 24 * 56)


def test_gate_and_up_are_two_products():
    op, _ = _made("kept_gated_linear")
    assert op.flops("forward", SHAPE) == 2 * 2 * 40 * 24 * 56


@pytest.mark.parametrize("name", ["dgrad_product", "wgrad_product"])
def test_a_gradient_of_ours_is_one_product(name):
    """PyTorch's product runs for matrices this small."""
    op, arguments = _made(name)
    call = op.build("ours", "forward", lambda f: f)(arguments)
    with torch.autograd.profiler.profile() as profile:
        call()
    assert [event.name for event in profile.function_events].count("aten::mm") == 1


def test_products_are_asked_for_by_name():
    names = {op.name for op in linear_product.OPS}
    assert set(BARE) < names
    for asked in ([], ["linear"], ["linear/linear"]):
        assert names.isdisjoint(op.name for op in cases.select(asked))


def test_packed_is_no_rival_of_ours(make_row):
    times = {"torch": 120.0, "packed": 80.0, "ours": 100.0}
    (problem,) = table.problems([make_row(name, time) for name, time in times.items()])
    assert problem.speed_up == pytest.approx(1.2)


# ---- cuBLASLt -----------------------------------------------------------------------------------


def _kept_by(kind, rows, cols, offset):
    """A matrix stored by rows or by columns whose lines are longer than it is."""
    long = torch.randn(rows, cols + offset) if kind == "rows" else torch.randn(cols, rows + offset)
    return long[:, :cols] if kind == "rows" else long[:, :rows].t()


def _read(memory, layout):
    """The matrix as cuBLASLt reads it."""
    return memory.as_strided((layout.rows, layout.cols), (1, layout.leading))


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("first", ["rows", "columns"])
@pytest.mark.parametrize("second", ["rows", "columns"])
def test_layouts_say_where_the_numbers_are(first, second, offset):
    x, y = _kept_by(first, 5, 7, offset), _kept_by(second, 7, 4, offset)
    of = layouts(x, y)
    a, b = _read(y, of.a), _read(x, of.b)
    out = torch.empty(5, 4)
    _read(out, of.d).copy_((a.t() if of.transpose_a else a) @ (b.t() if of.transpose_b else b))
    torch.testing.assert_close(out, x @ y)
    assert (of.transpose_a, of.transpose_b) == (second == "columns", first == "columns")


def test_layouts_of_the_products_of_an_mlp():
    rows, features, hidden = 40, 24, 56
    x, dy = torch.empty(rows, features), torch.empty(rows, hidden)
    weight = torch.empty(hidden, features)
    of_weight, of_x = Layout(features, hidden, features), Layout(features, rows, features)
    of_dy = Layout(hidden, rows, hidden)
    assert layouts(x, weight.t()) == (of_weight, of_x, of_dy, True, False)
    assert layouts(dy, weight) == (of_weight, of_dy, of_x, False, False)
    assert layouts(dy.t(), x) == (of_x, of_dy, of_weight, False, True)


def test_a_matrix_by_neither_is_refused():
    x = torch.empty(8, 8)[::2, ::2]
    with pytest.raises(UnsupportedError, match="by rows or by columns"):
        layouts(x, torch.empty(4, 4))


def test_the_result_of_a_heuristic_lies_as_in_c():
    fields = ("algo", "workspace_bytes", "state", "waves", "reserved")
    assert [getattr(Heuristic, name).offset for name in fields] == [0, 64, 72, 76, 80]
    assert ctypes.sizeof(Heuristic) == 96


def test_the_library_is_that_of_pytorchs_cuda(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert cublaslt.library_name() == "libcublasLt.so.13"
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UnsupportedError, match="this PyTorch has no CUDA"):
        cublaslt.library_name()


def test_a_library_that_is_not_loaded_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    cublaslt._library.cache_clear()
    with pytest.raises(UnsupportedError, match=r"has not loaded libcublasLt\.so\.99"):
        cublaslt._library()


def test_cublaslt_runs_on_a_gpu_only():
    assert providers.why_absent("cublaslt", CPU) == "runs on a GPU only"


@pytest.mark.cuda
@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16, torch.float32])
def test_cublaslt_computes_the_product(name, precision):
    op, arguments = _made(name, precision, shape=(512, 256, 384), device=torch.device("cuda"))
    call = op.build("cublaslt", "forward", lambda f: f)(arguments)
    assert Reference(op, "forward", arguments).check(call) > 0
    expected = op.build("torch", "forward", lambda f: f)(arguments)()
    torch.testing.assert_close(call(), expected, rtol=2e-2, atol=0.5)


@pytest.mark.cuda
def test_cublaslt_offers_several_algorithms_and_keeps_one():
    x, y = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = cublaslt._product(layouts(x, y), x.dtype, x.device)
    offered = product.offered()
    assert 1 < len(offered) <= cublaslt.WANTED
    chosen = product.fastest(x, y)
    assert bytes(chosen.algo) in [bytes(one.algo) for one in offered]
    assert product.fastest(x, y) is chosen
