# SPDX-License-Identifier: MIT
"""A token in one call: against float64, and bit for bit against itself."""

from __future__ import annotations

import dataclasses
import gc
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import _library
from transformer_kernels.decode import StepPlan, StepSession, StepWeight, barrier_nanoseconds

from .step_model import FORMATS, Reference, Shape

pytestmark = pytest.mark.skipif(not _library.has_kernels, reason="the library is not built")

# Errors relative to the logits. Exact activations leave those of the cache's float16.
EXACT, SMALL = 4e-3, 0.15
SHAPES = {
    "plain": Shape(),
    "grouped": Shape(heads=6, kv_heads=2, biases=True, qk_norm=True, rotary=16, inner=96),
    "one key head": Shape(heads=7, kv_heads=1, windows=(0, 20), tied=False, activation="gelu"),
    "cut blocks": Shape(heads=4, kv_heads=2, head_dim=48, interleaved=True, inner=352,
                        embedding_scale=2.0, activation="gelu_tanh"),
    "capped": Shape(heads=2, kv_heads=2, head_dim=18 * 16, softcap=5.0, logit_softcap=3.0),
}  # fmt: skip
ODD = Shape(hidden=45, heads=5, kv_heads=5, head_dim=10, inner=37, vocab=51, formats=FORMATS[:3])
MIXED = Shape(formats=("int4_minimum", "int8", "bfloat16", "int4", "float16"), group=32)
LARGE_GROUPS = Shape(hidden=128, heads=4, kv_heads=4, inner=256, group=128)


def _tokens(shape: Shape, count: int) -> Tensor:
    return torch.randint(0, shape.vocab, (count,))


def _worst(found: Tensor, wanted: Tensor) -> float:
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


def _check(shape: Shape, parts: int, count: int = 140) -> None:
    model = Reference(shape)
    tokens = _tokens(shape, count)
    wanted = model.logits(tokens)
    session = StepSession(model.plan(parts), count)
    for bits, bound in ((16, EXACT), (8, SMALL)):
        session.truncate(0)
        best, logits = session.step(tokens, outputs=count, logits=True, activations=bits)
        assert logits is not None
        assert _worst(logits, wanted) < bound
        assert torch.equal(best, logits.argmax(-1))
        assert session.length == count


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", SHAPES)
def test_against_float64(kind: str, name: str) -> None:
    for parts in (1, 3):
        _check(dataclasses.replace(SHAPES[name], formats=(kind,)), parts, count=70)


@pytest.mark.parametrize("kind", ["int8", "int4", "int4_minimum"])
def test_larger_groups(kind: str) -> None:
    for group in (64, 128):
        _check(dataclasses.replace(LARGE_GROUPS, formats=(kind,), group=group), parts=3)


@pytest.mark.parametrize("shape", [ODD, MIXED], ids=["odd sizes", "mixed formats"])
def test_sizes_and_formats_in_one_model(shape: Shape) -> None:
    _check(shape, parts=2)


def test_more_parts_than_heads_or_units() -> None:
    _check(Shape(heads=1, kv_heads=1, inner=32, vocab=20), parts=4, count=20)


def _steps(session: StepSession, tokens: Tensor, sizes: list[int], bits: int) -> Tensor:
    session.truncate(0)
    found = []
    for some in tokens.split(sizes):
        _, logits = session.step(some, outputs=len(some), logits=True, activations=bits)
        found.append(logits)
    return torch.cat([x for x in found if x is not None])


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4_minimum"])
def test_bits_do_not_depend_on_rows_or_threads(kind: str, bits: int) -> None:
    """A prompt at once, in pieces and one by one; over borders of blocks and of chunks."""
    shape = Shape(heads=6, kv_heads=2, windows=(0, 70), formats=(kind,))
    tokens = _tokens(shape, 150)
    session = StepSession(Reference(shape).plan(parts=3), 150)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = _steps(session, tokens, [150], bits)
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            pieces = [1, 2, 3, 4, 5, 7, 8, 16, 60, 1, 1, 1, 40, 1]
            assert torch.equal(_steps(session, tokens, pieces, bits), whole)
    finally:
        torch.set_num_threads(threads)


def test_outputs_are_those_of_the_last_rows() -> None:
    shape = Shape()
    model = Reference(shape)
    tokens = _tokens(shape, 141)
    session = StepSession(model.plan(2), 256)
    every, logits = session.step(tokens, outputs=141, logits=True)
    assert logits is not None
    for outputs in (0, 1, 13, 20):
        session.truncate(0)
        best, some = session.step(tokens.to(torch.int32), outputs=outputs, logits=True)
        assert torch.equal(best, every[141 - outputs :])
        assert some is not None
        assert torch.equal(some, logits[141 - outputs :])
    session.truncate(100)
    best, none = session.step(tokens[100:].tolist())
    assert none is None
    assert torch.equal(best, every[-1:])


def test_the_first_of_equals_is_the_best() -> None:
    model = Reference(Shape(vocab=40))
    rows = model.embedding.values
    rows[:] = rows[0].clone()
    for parts in (1, 3):
        best, _ = StepSession(model.plan(parts), 8).step([3, 5], outputs=2)
        assert best.tolist() == [0, 0]


def test_sessions_share_a_plan_and_keep_it_alive() -> None:
    model = Reference(Shape(formats=("int8",)))
    tokens = _tokens(model.shape, 90)
    plan = model.plan(2)
    sessions = [StepSession(plan, 100) for _ in range(3)]
    alone = sessions[0].step(tokens, logits=True)[1]
    del plan
    gc.collect()
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        sessions[number].step(tokens[:50], outputs=0)
        found[number] = sessions[number].step(tokens[50:], logits=True)[1]

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[1], alone)
    assert torch.equal(found[2], alone)


def test_what_is_not_finite_is_seen() -> None:
    model = Reference(Shape(formats=("int8",), tied=False))
    embedding = model.embedding.values.double()
    assert model.embedding.scales is not None
    scales = model.embedding.scales.clone()
    scales[7] = float("nan")
    model.embedding = StepWeight(model.embedding.values, scales)
    _, logits = StepSession(model.plan(2), 8).step([1, 7], outputs=2, logits=True)
    assert logits is not None
    assert embedding.isfinite().all()
    assert logits[0].isfinite().all()
    assert logits[1].isnan().all()


def test_a_plan_is_read_and_threads_meet() -> None:
    plan = Reference(Shape(formats=("int8",))).plan(2)
    assert plan.packed_bytes > 2 * 4 * 96 * 96
    assert plan.read() == plan.read() != 0
    assert barrier_nanoseconds(100) > 0
    with pytest.raises(ValueError, match="rounds is 0"):
        barrier_nanoseconds(0)


def _wrong_layer(model: Reference, **changes: Any) -> str:
    s = model.shape
    plan = StepPlan(
        hidden=s.hidden, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, inner=s.inner,
        vocab=s.vocab, cosines=model.cosines, sines=model.sines,
    )  # fmt: skip
    given: dict[str, Any] = {**model.layers[0], **model.vectors[0], **changes}
    with pytest.raises((ValueError, TypeError)) as error:
        plan.add_layer(**given)
    return str(error.value)


def test_wrong_weights_are_named() -> None:
    model = Reference(Shape())
    square = torch.zeros(96, 96)
    halves = torch.zeros(96, 3).half()
    codes = torch.zeros(96, 96, dtype=torch.int8)
    assert "q is float64, expected float32" in _wrong_layer(model, q=square.double())
    assert "values of k has shape (96, 95)" in _wrong_layer(model, k=torch.zeros(96, 95))
    assert "v is list, expected a Tensor" in _wrong_layer(model, v=[[1.0], None, None])
    assert "scales of o are missing" in _wrong_layer(model, o=codes)
    assert "scales of o are float32" in _wrong_layer(model, o=StepWeight(codes, halves.float()))
    assert "(96, 2), expected one for" in _wrong_layer(model, o=StepWeight(codes, halves[:, :2]))
    assert "scales of q are given" in _wrong_layer(model, q=StepWeight(square, halves))
    assert "minimums of q are given" in _wrong_layer(model, q=StepWeight(codes, halves, halves))
    assert "window is -1" in _wrong_layer(model, window=-1)
    assert "mlp_norm has shape (95,), expected (96,)" in _wrong_layer(
        model, mlp_norm=torch.ones(95)
    )
    assert "q_bias is int64" in _wrong_layer(model, q_bias=torch.ones(96, dtype=torch.int64))


def test_wrong_models_are_named() -> None:
    good = {
        "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "inner": 64, "vocab": 10,
        "cosines": torch.zeros(9, 4), "sines": torch.zeros(9, 4),
    }  # fmt: skip
    wrong = [
        ({"kv_heads": 3}, "kv_heads is 3, expected a divisor of 4"),
        ({"head_dim": 9, "cosines": torch.zeros(9, 1)}, "head_dim is 9, expected an even number"),
        ({"hidden": 0}, "hidden is 0"),
        ({"parts": 0}, "parts is 0"),
        ({"activation": "relu"}, "activation is 'relu'"),
        ({"cosines": torch.zeros(9, 5)}, "cosines has shape (9, 5)"),
        ({"sines": torch.zeros(8, 4)}, "sines has shape (8, 4), expected (9, 4)"),
        ({"sines": torch.zeros(9, 4).double()}, "sines is not a float32 matrix"),
        ({"eps": -1.0}, "eps is -1"),
        ({"softcap": -1.0}, "softcap is -1"),
        ({"softcap": float("inf")}, "softcap is inf, expected a finite number, 0 or above"),
        ({"logit_softcap": float("inf")}, "logit_softcap is inf, expected a finite number"),
        ({"scale": float("inf")}, "scale is inf"),
    ]
    for changes, message in wrong:
        with pytest.raises((ValueError, TypeError)) as error:
            StepPlan(**{**good, **changes})  # type: ignore[arg-type]
        assert message in str(error.value)


def test_wrong_steps_are_named_and_append_nothing() -> None:
    model = Reference(Shape())
    plan = model.plan(1)
    session = StepSession(plan, 20)
    session.step([1, 2, 3])
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ([203], {}, "tokens has 203, expected numbers from 0 to 202"),
        ([-1], {}, "tokens has -1"),
        ([1] * 18, {}, "tokens has 18 elements, expected at most 17"),
        (torch.zeros(0, dtype=torch.int64), {"outputs": 0}, "tokens has shape (0,)"),
        (torch.zeros(1, 1, dtype=torch.int64), {}, "tokens has shape (1, 1)"),
        (torch.ones(1), {}, "tokens is float32, expected int32 or int64"),
        ([1, 2], {"outputs": 3}, "outputs is 3, expected 0 to 2"),
        ([1, 2], {"activations": 4}, "activations is 4, expected 16 or 8"),
    ]
    for tokens, options, message in wrong:
        with pytest.raises((ValueError, TypeError)) as error:
            session.step(tokens, **options)
        assert message in str(error.value)
        assert session.length == 3
    with pytest.raises(ValueError, match="length is 4, expected 0 to 3"):
        session.truncate(4)
    with pytest.raises(ValueError, match="positions is 257, expected 1 to 256"):
        StepSession(plan, 257)
    with pytest.raises(ValueError, match="the plan is finished"):
        plan.finish(embedding=model.embedding, final_norm=model.final_norm)
    with pytest.raises(RuntimeError, match="session is 0, expected the number of one"):
        torch.ops.transformer_kernels.decode_step(0, torch.zeros(1).long(), 0, False, 16)
