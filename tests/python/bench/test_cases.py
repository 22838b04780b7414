# SPDX-License-Identifier: MIT
"""Every op's case: what it moves, and that each provider computes it."""

from __future__ import annotations

import pytest
import torch

from transformer_kernels.bench import cases
from transformer_kernels.bench.case import PASSES, Problem, UnsupportedError
from transformer_kernels.bench.verify import Reference

CPU = torch.device("cpu")
NAMES = ("softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")


def _problem(op, pass_="forward", dtype=torch.float32, weight_dtype=None, rows=33, columns=257):
    return Problem(op, pass_, dtype, weight_dtype or dtype, rows, columns)


def _eager(function):
    return function


def test_the_ops_are_those_of_the_library():
    assert set(NAMES) <= set(cases.all_ops())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("provider", ["torch", "compile", "ours"])
def test_a_provider_computes_the_op(name, pass_, precision, provider):
    """ "compile" runs its formulas uncompiled: they are what is tested here."""
    op, problem = cases.all_ops()[name], _problem(name, pass_, precision)
    arguments = op.make(problem, CPU)
    reference = Reference(op, pass_, arguments)
    with torch.no_grad():
        call = op.build(provider, pass_, _eager)(arguments)
        error = reference.check(call, allowance=1 if provider == "ours" else 4)
    assert error > 0 or precision is torch.float64


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("provider", ["torch", "compile", "ours"])
def test_float32_parameters_beside_bfloat16(name, pass_, provider):
    op, problem = cases.all_ops()[name], _problem(name, pass_, torch.bfloat16, torch.float32)
    arguments = op.make(problem, CPU)
    assert arguments["weight"].dtype is torch.float32
    with torch.no_grad():
        Reference(op, pass_, arguments).check(op.build(provider, pass_, _eager)(arguments), 4)


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        # Elements moved for M x N: tensors of M x N, parameters of N, statistics of M.
        ("softmax", (2, 0, 0), (3, 0, 0)),
        ("layer_norm", (2, 2, 0), (3, 3, 2)),
        ("rms_norm", (2, 1, 0), (3, 2, 1)),
        ("add_layer_norm", (4, 2, 0), (4, 3, 2)),
        ("add_rms_norm", (4, 1, 0), (4, 2, 1)),
    ],
)
def test_bytes_are_the_fewest_possible(name, forward, backward):
    rows, columns, size = 8, 32, 4
    op, problem = cases.all_ops()[name], _problem(name, rows=rows, columns=columns)
    arguments = op.make(problem, CPU)

    def expected(counts):
        tensors, parameters, statistics = counts
        return size * (tensors * rows * columns + parameters * columns + statistics * rows)

    moved = {pass_: op.bytes_moved(pass_, arguments) for pass_ in PASSES}
    assert moved["forward"] == expected(forward)
    assert moved["backward"] == expected(backward)
    assert moved["both"] == moved["forward"] + moved["backward"]


@pytest.mark.parametrize("name", ["attention", "causal_attention"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("provider", ["torch", "ours"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_provider_computes_attention(name, pass_, provider, precision):
    op, problem = cases.all_ops()[name], _problem(name, pass_, precision, rows=70, columns=128)
    arguments = op.make(problem, CPU)
    with torch.no_grad():
        call = op.build(provider, pass_, _eager)(arguments)
        error = Reference(op, pass_, arguments).check(call, 1 if provider == "ours" else 4)
    assert error > 0


def test_attention_counts_its_operations():
    full, causal = (cases.all_ops()[name] for name in ("attention", "causal_attention"))
    assert full.flops("forward", 2048, 128) == 4 * 2 * 1024 * 1024 * 128
    assert causal.flops("backward", 70, 64) == 2.5 * 2 * 70 * 70 * 64
    assert full.verified_rows(2048) == slice(1024, 2048)
    arguments = full.make(_problem("attention", rows=8, columns=64), CPU)
    assert full.bytes_moved("forward", arguments) == 4 * 8 * 64 * 4
    assert full.bytes_moved("backward", arguments) == (5 + 3) * 8 * 64 * 4
    with pytest.raises(UnsupportedError, match="compile has no attention backward"):
        full.build("compile", "backward", _eager)


def test_inputs_are_fresh_random_numbers():
    op, problem = cases.all_ops()["layer_norm"], _problem("layer_norm")
    first, second = op.make(problem, CPU), op.make(problem, CPU)
    assert not torch.equal(first["x"], second["x"])
    assert abs(first["weight"].mean().item() - 1) < 0.5


@pytest.mark.parametrize(
    ("op", "provider", "pass_"),
    [("log_softmax", "liger", "forward"), ("log_softmax", "quack", "backward"),
     ("layer_norm", "quack", "both"), ("add_layer_norm", "liger", "backward")],
)  # fmt: skip
def test_what_a_rival_lacks_is_said(op, provider, pass_):
    with pytest.raises(UnsupportedError, match=f"{provider} has no .*{op}"):
        cases.all_ops()[op].build(provider, pass_, _eager)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["norm", "softmax"], set(NAMES)),
        (["softmax"], {"softmax", "log_softmax"}),  # the family's name is the op's as well
        (["norm/rms_norm"], {"rms_norm", "add_rms_norm"}),
        (["norm/add_rms_norm"], {"add_rms_norm"}),
        (["layer_norm", "log_softmax"], {"layer_norm", "log_softmax"}),
    ],
)
def test_selection_by_name_key_and_family(names, expected):
    assert {op.name for op in cases.select(names)} == expected


def test_no_name_selects_everything():
    assert cases.select([]) == list(cases.all_ops().values())


def test_an_unknown_op_is_refused():
    with pytest.raises(ValueError, match="unknown op 'gelu', expected one of"):
        cases.select(["softmax", "gelu"])


def test_a_problem_in_words():
    problem = _problem("rms_norm", "backward", torch.bfloat16, torch.float32)
    assert str(problem) == "rms_norm backward bfloat16 float32 weights 33x257"
