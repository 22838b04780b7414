# SPDX-License-Identifier: MIT
"""Every op's case: the bytes that it moves, and that each provider computes it."""

from __future__ import annotations

import pytest
import torch

from transformer_kernels.bench import cases
from transformer_kernels.bench.cases import pointwise
from transformer_kernels.bench.runner import Settings
from transformer_kernels.measure.case import PASSES, Problem, UnsupportedError
from transformer_kernels.measure.sweeps import SWEEPS
from transformer_kernels.measure.verify import Reference

CPU = torch.device("cpu")
NAMES = (
    "softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm",
    "cross_entropy",
)  # fmt: skip


def _problem(op, pass_="forward", dtype=torch.float32, weight_dtype=None, rows=33, columns=257):
    return Problem(op, pass_, dtype, weight_dtype or dtype, (rows, columns))


def _eager(function):
    return function


def test_the_ops_are_those_of_the_library():
    assert set(NAMES) <= set(cases.all_ops())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("provider", ["torch", "compile", "ours"])
def test_a_provider_computes_the_op(name, pass_, precision, provider):
    """The formulas of "compile" run uncompiled, because they are under test here."""
    op, problem = cases.all_ops()[name], _problem(name, pass_, precision)
    arguments = op.make(problem, CPU)
    reference = Reference(op, pass_, arguments)
    with torch.no_grad():
        call = op.build(provider, pass_, _eager)(arguments)
        error = reference.check(call, allowance=1 if provider == "ours" else 4)
    assert error > 0 or precision is torch.float64


@pytest.mark.parametrize("op", pointwise.OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("provider", ["torch", "compile", "ours"])
def test_a_provider_computes_an_activation(op, pass_, precision, provider):
    """Some of them without an error."""
    arguments = op.make(_problem(op.name, pass_, precision), CPU)
    with torch.no_grad():
        call = op.build(provider, pass_, _eager)(arguments)
        Reference(op, pass_, arguments).check(call, allowance=1 if provider == "ours" else 4)
    assert op in cases.select(["pointwise"])


@pytest.mark.parametrize("name", ["linear_cross_entropy", "chunked_linear_cross_entropy"])
@pytest.mark.parametrize("pass_", PASSES)
def test_a_provider_computes_the_loss_of_a_linear_layer(name, pass_):
    op = cases.all_ops()[name]
    arguments = op.make(Problem(name, pass_, torch.float32, torch.float32, (9, 24, 65)), CPU)
    for provider in op.functions:
        with torch.no_grad():
            call = op.build(provider, pass_, _eager)(arguments)
            Reference(op, pass_, arguments).check(call, allowance=4)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("provider", ["torch", "ours"])
def test_a_provider_computes_an_attention_block(pass_, provider):
    op = cases.all_ops()["attention_block"]
    problem = Problem(op.name, pass_, torch.float32, torch.float32, (2, 9, 128))
    arguments = op.make(problem, CPU)
    with torch.no_grad():
        call = op.build(provider, pass_, _eager)(arguments)
        Reference(op, pass_, arguments).check(call, allowance=4)
    assert op.flops(pass_, problem.shape) > 0
    assert op.bytes_moved(pass_, arguments) > 4 * 128 * 128 * 4


@pytest.mark.parametrize("name", ["embedding", "uniform_embedding", "embedding_add"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("provider", ["torch", "compile", "ours"])
def test_a_provider_computes_embeddings(name, pass_, provider):
    op = cases.all_ops()[name]
    problem = Problem(name, pass_, torch.bfloat16, torch.bfloat16, (2, 70, 19, 24))
    arguments = op.make(problem, CPU)
    y, table, places = 2 * 70 * 24 * 2, 19 * 24 * 2, 70 * 24 * 2 * (name == "embedding_add")
    indices = 2 * 70 * 8
    assert op.bytes_moved("forward", arguments) == indices + 2 * y + places
    assert op.bytes_moved("backward", arguments) == indices + y + table + places
    with torch.no_grad():
        call = op.build(provider, pass_, _eager)(arguments)
        Reference(op, pass_, arguments).check(call, allowance=1 if provider == "ours" else 4)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n, op in cases.all_ops().items()
        if op.feature and "attention" in op.key and op.backward
    ],
)
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("provider", ["torch", "ours"])
@pytest.mark.parametrize("heads", [(4,), (4, 2)])
def test_a_feature_of_attention_computes_what_the_reference_does(name, pass_, provider, heads):
    (op,) = cases.select([name])
    problem = Problem(op.name, pass_, torch.float32, torch.float32, (2, 70, *heads, 24))
    arguments = op.make(problem, CPU)
    if provider not in op.providers:
        with pytest.raises(UnsupportedError, match=name):
            op.build(provider, pass_, _eager)
        return
    with torch.no_grad():
        Reference(op, pass_, arguments).check(op.build(provider, pass_, _eager)(arguments), 4)


def test_features_are_measured_by_name_alone():
    features = {op.name for op in cases.all_ops().values() if op.feature}
    assert "softcap_attention" in features
    for names in ([], ["attention"], ["attention/attention"]):
        assert features.isdisjoint(op.name for op in cases.select(names))
    assert [op.name for op in cases.select(["attention/softcap_attention"])] == [
        "softcap_attention"
    ]


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


def _attention(name, pass_, shape, precision=torch.float32):
    return cases.all_ops()[name], Problem(name, pass_, precision, precision, shape)


@pytest.mark.parametrize("name", ["attention", "causal_attention"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("provider", ["torch", "math", "flash", "ours"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 35, 3, 16), (1, 35, 4, 2, 16)])
def test_a_provider_computes_attention(name, pass_, provider, precision, shape):
    op, problem = _attention(name, pass_, shape, precision)
    arguments = op.make(problem, CPU)
    with torch.no_grad():
        call = op.build(provider, pass_, _eager)(arguments)
        error = Reference(op, pass_, arguments).check(call, 1 if provider == "ours" else 4)
    assert error > 0


@pytest.mark.parametrize("name", ["q", "k"])
def test_attention_is_checked_in_the_heads_that_belong_together(name):
    op, problem = _attention("attention", "forward", (2, 5, 6, 3, 8))
    arguments = op.make(problem, CPU)
    wanted = {"q": (1, 5, 2, 8), "k": (1, 5, 1, 8)}
    assert op.verified(arguments)(name, arguments[name]).shape == wanted[name]


@pytest.mark.parametrize("name", ["attention", "causal_attention"])
def test_the_reference_of_attention_takes_some_rows_at_a_time(name, monkeypatch):
    op, problem = _attention(name, "forward", (1, 29, 4, 2, 8))
    arguments = op.make(problem, CPU)
    whole, *gradients = _results(op, arguments)
    monkeypatch.setattr("transformer_kernels.bench.cases.attention._SCORES", 29 * 8)
    blocks, *others = _results(op, arguments)
    torch.testing.assert_close(blocks, whole)
    for a, b in zip(others, gradients, strict=True):
        torch.testing.assert_close(a, b)


def _results(op, arguments):
    leaves = [arguments[name].double().requires_grad_() for name in op.inputs]
    out = op.reference(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, arguments["dout"].double())


def test_attention_counts_its_operations():
    full, causal = (cases.all_ops()[name] for name in ("attention", "causal_attention"))
    assert full.flops("forward", (2, 1024, 2, 64)) == 4 * 2 * 1024 * 1024 * 128
    assert causal.flops("backward", (1, 70, 4, 2, 16)) == 2.5 * 2 * 70 * 70 * 64
    arguments = full.make(_attention("attention", "forward", (1, 8, 4, 2, 16))[1], CPU)
    rows = {"q": 4, "k": 2, "v": 2, "out": 4, "dout": 4}
    row_bytes = 8 * 16 * 4
    assert full.bytes_moved("forward", arguments) == (4 + 2 + 2 + 4) * row_bytes
    assert full.bytes_moved("backward", arguments) == (sum(rows.values()) + 8) * row_bytes
    with pytest.raises(UnsupportedError, match="compile has no attention backward"):
        full.build("compile", "backward", _eager)


def test_experts_count_the_products_of_the_chosen_alone():
    tokens, hidden, features, experts, chosen = shape = (12, 8, 6, 5, 2)
    count = cases.all_ops()["moe_experts"].flops
    assert count("forward", shape) == 2 * tokens * chosen * 3 * hidden * features
    assert count("backward", shape) == 2 * count("forward", shape)
    assert count("forward", (tokens, hidden, features, 2 * experts, chosen)) == count(
        "forward", shape
    )


@pytest.mark.parametrize("name", ["sample_logits", "adamw", "quantized_linear", "layer_norm"])
def test_passes_that_an_op_does_not_have_are_not_measured(name):
    op = cases.all_ops()[name]
    settings = Settings([op], PASSES, [torch.float32], lambda *_: [(2, 8)], CPU)
    has_gradient = name in ("layer_norm", "quantized_linear")
    wanted = PASSES if has_gradient else ("forward",)
    assert [problem.pass_ for problem in settings.problems()] == [*wanted]


@pytest.mark.parametrize("where", ["cuda", "cpu"])
@pytest.mark.parametrize("sweep", SWEEPS)
def test_attention_has_shapes_of_its_own(sweep, where):
    op = cases.all_ops()["attention"]
    shapes = op.grid.shapes_of([sweep], torch.device(where), torch.bfloat16)
    assert shapes
    assert all(op.grid.fold(shape) == shape for shape in shapes)
    if sweep == "headline":
        assert len({batch * time for batch, time, *_ in shapes}) == 1
        assert len({heads * dim for _, _, heads, dim in shapes}) == 1


@pytest.mark.parametrize("text", ["8192x768", "1x2x3x4x5x6", "1x9x6x4x8", "1x9x6x0x8"])
def test_a_shape_of_another_form_is_no_attention(text):
    with pytest.raises(ValueError, match="expected a form like 8x2048x32x128"):
        cases.all_ops()["attention"].grid.parse(text)


def test_who_has_an_op():
    assert {"math", "cudnn", "flash", "torch", "ours"} < cases.all_ops()["attention"].providers
    assert "cudnn" not in cases.all_ops()["softmax"].providers


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


DROPOUT_NORMS = ("bias_dropout_add_layer_norm", "bias_dropout_add_rms_norm")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["norm", "softmax", "loss"], {*NAMES, *DROPOUT_NORMS}),
        (["softmax"], {"softmax", "log_softmax"}),  # the family's name is the op's as well
        (["norm/rms_norm"], {"rms_norm", "add_rms_norm"}),
        (["norm/add_rms_norm"], {"add_rms_norm"}),
        (["layer_norm", "log_softmax"], {"layer_norm", "log_softmax"}),
    ],
)
def test_selection_by_name_key_and_family(names, expected):
    assert {op.name for op in cases.select(names)} == expected


def test_no_name_selects_everything_but_features():
    assert cases.select([]) == [op for op in cases.all_ops().values() if not op.feature]


def test_an_unknown_op_is_refused():
    with pytest.raises(ValueError, match="unknown op 'no_such_op', expected one of"):
        cases.select(["softmax", "no_such_op"])


def test_a_problem_in_words():
    problem = _problem("rms_norm", "backward", torch.bfloat16, torch.float32)
    assert str(problem) == "rms_norm backward bfloat16 float32 weights 33x257"


@pytest.mark.parametrize(("name", "numbers"), [("quantized_linear", 2), ("int8_linear", 1)])
def test_few_rows_are_bound_by_the_bytes_of_the_weight(name, numbers):
    op = cases.all_ops()[name]
    arguments = op.make(Problem(name, "forward", torch.bfloat16, torch.bfloat16, (2, 256, 24)), CPU)
    weight = 24 * 256 // numbers + 24 * 2 * 4
    assert op.bytes_moved("forward", arguments) == weight + 2 * (2 * 256 + 2 * 24)
    for kind in (name, "linear"):
        flops = cases.all_ops()[kind].flops
        assert flops("forward", (16, 256, 24)) == 0
        assert flops("forward", (17, 256, 24)) == 2 * 17 * 256 * 24
