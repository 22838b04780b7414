# SPDX-License-Identifier: MIT
"""The rotation: numbers, positions, layouts, memory. Tests that all ops share are in declared/."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.functional import rope, rope_tables
from transformer_kernels.ops.rope._ops import _IN_PLACE
from transformer_kernels.ops.rope._stock import turned
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.rope import KINDS, check, exact, op_arguments
from transformer_kernels.testing.tolerance import assert_close_to_reference

BATCH, TIME, POSITIONS = 2, 7, 12
STYLES = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])


def _heads(
    dtype: torch.dtype, device: str, dim: int = 16, heads: int = 4, batch: bool = True
) -> Tensor:
    return randn((*((BATCH,) if batch else ()), TIME, heads, dim), dtype, device)


def _tables(dtype: torch.dtype, device: str, rotary: int = 16) -> tuple[Tensor, Tensor]:
    return rope_tables(POSITIONS, rotary, 100.0, dtype=dtype, device=device)


def _counted(device: str) -> Tensor:
    return torch.arange(TIME, device=device).expand(BATCH, TIME)


# ---- numbers ------------------------------------------------------------------------------------


@STYLES
@pytest.mark.parametrize("rotary", [16, 12, 2])
@pytest.mark.parametrize("heads_first", [False, True])
def test_numbers(
    interleaved: bool, rotary: int, heads_first: bool, dtype: torch.dtype, device: str
) -> None:
    q, k = _heads(dtype, device), _heads(dtype, device, heads=2)
    if heads_first:
        q, k = (x.transpose(1, 2).contiguous() for x in (q, k))
    tables = _tables(dtype, device, rotary)
    options = {"interleaved": interleaved, "heads_first": heads_first}
    for backend in ("auto", "reference"):
        check(q, k, tables, _counted(device), backend, **options)
    check(q, None, tables, _counted(device), **options)


@STYLES
@pytest.mark.parametrize("dim", [64, 96, 128, 80])
def test_head_dims_of_models(interleaved: bool, dim: int, dtype: torch.dtype, device: str) -> None:
    q, k = _heads(dtype, device, dim), _heads(dtype, device, dim, heads=1)
    for rotary in (dim, dim // 2 // 8 * 8):
        check(q, k, _tables(dtype, device, rotary), _counted(device), interleaved=interleaved)


@STYLES
def test_tables_in_float32(interleaved: bool, device: str) -> None:
    """Only the result is rounded to 16 bits."""
    tables = _tables(torch.float32, device)
    rows = [table[:TIME].expand(BATCH, TIME, -1) for table in tables]
    for dtype in (torch.float16, torch.bfloat16):
        q = _heads(dtype, device)
        y = rope(q, None, *tables, interleaved=interleaved)
        expected = exact(q, *rows, interleaved)
        assert_close_to_reference(y, expected.to(dtype), expected)


@STYLES
def test_triton(interleaved: bool, device: str) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    for dtype in (torch.float64, torch.bfloat16):
        q, k = _heads(dtype, device, 20), _heads(dtype, device, 20, heads=17)
        tables = _tables(dtype, device, 12)
        check(q, k, tables, _counted(device), "triton", 1.0, interleaved=interleaved)


@pytest.mark.parametrize("kind", KINDS)
def test_backends_agree(kind: str, device: str) -> None:
    """Covers every way to give positions, forward and backward."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from transformer_kernels.ops.rope._ops import ROPE

    given = op_arguments(kind, device)
    expected = ROPE.call(*given.values(), "reference")
    for backend in ("auto", "triton"):
        for y, e in zip(ROPE.call(*given.values(), backend), expected, strict=True):
            torch.testing.assert_close(y, e)
    inputs = (*(torch.randn_like(x) for x in expected), *list(given.values())[2:])
    assert ROPE.gradient is not None
    assert ROPE.triton is not None
    expected = ROPE.gradient(*inputs)
    for backward in (ROPE.raw.backward, ROPE.triton().backward):
        for y, e in zip(backward(*inputs), expected, strict=True):
            torch.testing.assert_close(y, e)


@STYLES
def test_derivatives(interleaved: bool, device: str) -> None:
    tables = _tables(torch.float64, device, 4)
    leaves = [randn((1, 3, heads, 6), torch.float64, device).requires_grad_() for heads in (2, 1)]

    def function(q: Tensor, k: Tensor) -> Any:
        return rope(q, k, *tables, interleaved=interleaved)

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_one_result_alone(device: str) -> None:
    """The other tensor's gradient is zero."""
    q, k = (_heads(torch.float32, device).requires_grad_() for _ in range(2))
    tables = _tables(torch.float32, device)
    _, k_rotated = rope(q, k, *tables)
    dq, dk = torch.autograd.grad(k_rotated.sum(), (q, k))
    assert not dq.any()
    assert dk.any()


# ---- positions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
def test_position_ids(integer: torch.dtype, device: str) -> None:
    q, k = _heads(torch.float32, device), _heads(torch.float32, device, heads=1)
    tables = _tables(torch.float32, device)
    at = torch.randint(POSITIONS, (BATCH, TIME), dtype=integer, device=device)
    check(q, k, tables, at.long(), position_ids=at)
    for shared in (at[:1], at[0]):
        check(q, k, tables, at[:1].expand(BATCH, TIME).long(), position_ids=shared)
    strided = torch.stack([at, at], -1)[..., 0]
    check(q, k, tables, at.long(), position_ids=strided)


def test_offsets(device: str) -> None:
    q = _heads(torch.float32, device)
    tables = _tables(torch.float32, device)
    check(q, None, tables, _counted(device) + 5, offsets=5)
    offsets = torch.tensor([4, 1], device=device)
    check(q, None, tables, _counted(device) + offsets[:, None], offsets=offsets)


def test_ragged_sequences(device: str) -> None:
    q, k = (_heads(torch.float32, device, heads=h, batch=False) for h in (4, 2))
    tables = _tables(torch.float32, device)
    offsets = torch.tensor([0, 3, 3, 6], dtype=torch.int32, device=device)
    at = torch.tensor([0, 1, 2, 0, 1, 2], device=device)
    q_rotated, k_rotated = rope(q, k, *tables, cu_seqlens=offsets)
    for x, y in ((q, q_rotated), (k, k_rotated)):
        expected = turned(x[:6], *(table[at] for table in tables))
        torch.testing.assert_close(y[:6], expected)
        assert torch.equal(y[6:], x[6:])
    shifted = rope(
        q, None, *tables, cu_seqlens=offsets, offsets=torch.tensor([2, 0, 9], device=device)
    )
    at = torch.tensor([2, 3, 4, 9, 10, 11], device=device)
    torch.testing.assert_close(shifted[:6], turned(q[:6], *(table[at] for table in tables)))


@STYLES
def test_three_axes(interleaved: bool, device: str) -> None:
    """As in Qwen2-VL, each section's cosines and sines come from another axis."""
    q, k = _heads(torch.float32, device), _heads(torch.float32, device, heads=1)
    tables = _tables(torch.float32, device)
    at = torch.randint(POSITIONS, (3, BATCH, TIME), device=device)
    sections = (2, 3, 3)
    rows = [
        torch.cat([part[axis] for axis, part in enumerate(table[at].split(sections, -1))], -1)
        for table in tables
    ]
    options: dict[str, Any] = {"position_ids": at, "sections": sections}
    results = rope(q, k, *tables, interleaved=interleaved, **options)
    for x, y in zip((q, k), results, strict=True):
        torch.testing.assert_close(y, turned(x, *rows, interleaved))


def test_positions_that_the_tables_lack(device: str) -> None:
    q = _heads(torch.float32, device, 20)
    tables = _tables(torch.float32, device)
    at = _counted(device).clone()
    at[1, 3], at[0, 2] = POSITIONS, -1
    with pytest.raises(ValueError, match=r"^rope: q has position 12, expected 0 to 11 \(the rows"):
        rope(q, None, *tables, offsets=6)
    if device == "cpu":
        for backend in ("auto", "reference"):
            with pytest.raises(ValueError, match=r"^rope: position_ids has position -1, expected"):
                rope(q, None, *tables, position_ids=at, backend=backend)
        return
    for backend in ("auto", "triton", "reference"):
        y = rope(q, None, *tables, position_ids=at, backend=backend)
        outside = torch.zeros_like(q, dtype=torch.bool)
        outside[1, 3, :, :16] = outside[0, 2, :, :16] = True
        assert torch.equal(torch.isnan(y), outside)


# ---- memory -------------------------------------------------------------------------------------


@STYLES
def test_layouts(interleaved: bool, device: str) -> None:
    """Leading dimensions have any strides, and results are ordered in memory as their tensors
    are."""
    tables = _tables(torch.float32, device)
    packed = randn((BATCH, TIME, 3, 4, 16), torch.float32, device)
    q, k, _ = packed.unbind(2)
    check(q, k, tables, _counted(device), interleaved=interleaved)
    q = randn((BATCH, 4, TIME, 16), torch.float32, device).transpose(1, 2)
    check(q, None, tables, _counted(device), interleaved=interleaved)
    assert rope(q, None, *tables).stride() == q.stride()
    columns = randn((BATCH, TIME, 16, 4), torch.float32, device).transpose(2, 3)
    check(columns, None, tables, _counted(device), interleaved=interleaved)
    row = randn((BATCH, 1, 1, 16), torch.float32, device).expand(BATCH, TIME, 4, 16)
    check(row, None, tables, _counted(device), interleaved=interleaved)


@STYLES
@pytest.mark.parametrize("heads_first", [False, True])
def test_in_place(interleaved: bool, heads_first: bool, dtype: torch.dtype, device: str) -> None:
    packed = randn((BATCH, TIME, 3, 4, 20), dtype, device)
    before = packed.clone()
    tables = _tables(dtype, device)
    options = {"interleaved": interleaved, "heads_first": heads_first}

    def parts(x: Tensor) -> list[Tensor]:
        return [y.transpose(1, 2) if heads_first else y for y in x.unbind(2)]

    q, k, v = parts(packed)
    result = rope(q, k, *tables, inplace=True, **options)
    assert result[0] is q
    assert result[1] is k
    for got, expected in zip((q, k), rope(*parts(before)[:2], *tables, **options), strict=True):
        torch.testing.assert_close(got, expected)
    assert torch.equal(v, parts(before)[2])


@pytest.mark.parametrize("backend", ["auto", "reference", "triton"])
def test_in_place_under_autograd(backend: str, device: str) -> None:
    tables = _tables(torch.float64, device)
    leaf = _heads(torch.float64, device).requires_grad_()

    def function(x: Tensor) -> Tensor:
        y = x * 2
        assert rope(y, None, *tables, inplace=True, backend=backend) is y
        return y * y

    if backend != "triton":
        assert torch.autograd.gradcheck(function, (leaf[:1, :2, :1].detach().requires_grad_(),))
    (found,) = torch.autograd.grad(function(leaf).sum(), leaf)
    expected = rope(leaf * 2, None, *tables)
    torch.testing.assert_close(found, torch.autograd.grad((expected * expected).sum(), leaf)[0])
    with pytest.raises(RuntimeError, match="leaf Variable"):
        rope(leaf, None, *tables, inplace=True, backend=backend)


def test_in_place_op(device: str) -> None:
    for kind in KINDS:
        torch.library.opcheck(_IN_PLACE, tuple(op_arguments(kind, device).values()))


def test_empty(device: str) -> None:
    tables = _tables(torch.float32, device)
    for shape in ((0, 7, 4, 16), (2, 0, 4, 16), (2, 7, 0, 16), (0, 4, 16)):
        x = torch.empty(shape, device=device, requires_grad=True)
        for backend in ("auto", "reference"):
            y = rope(x, None, *tables, backend=backend)
            assert y.shape == shape
            assert torch.autograd.grad(y.sum(), x)[0].shape == shape


# ---- in PyTorch ---------------------------------------------------------------------------------


class _Model(torch.nn.Module):
    def __init__(self, device: str, **options: Any) -> None:
        super().__init__()
        self.rope = tfk.nn.RotaryEmbedding(16, 32, device=device)
        self.options = options

    def forward(self, q: Tensor, k: Tensor, at: Tensor) -> Tensor:
        q, k = self.rope(q * 2, k, position_ids=at)
        q, k = self.rope(q.clone(), k, **self.options)
        return q.sum(-1).sum(-1) + k.sum(-1).sum(-1)


@pytest.mark.parametrize("inplace", [False, True])
def test_compiled(inplace: bool, device: str) -> None:
    torch._dynamo.reset()
    model = _Model(device, inplace=inplace)
    q, k = (_heads(torch.float32, device).requires_grad_() for _ in range(2))
    at = torch.randint(12, (BATCH, TIME), device=device)
    expected = model(q, k, at)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, at), expected)
    gradients = torch.autograd.grad(expected.sum(), (q, k))
    for ours, theirs in zip(
        torch.autograd.grad(compiled(q, k, at).sum(), (q, k)), gradients, strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_compiled_in_changing_sizes(device: str) -> None:
    torch._dynamo.reset()
    tables = _tables(torch.float32, device)
    compiled = torch.compile(
        lambda q, offset: rope(q, None, *tables, offsets=offset), fullgraph=True, dynamic=True,
        backend="aot_eager",
    )  # fmt: skip
    for time, offset in ((3, 0), (5, 2), (6, 3)):
        q = randn((BATCH, time, 4, 16), torch.float32, device)
        torch.testing.assert_close(compiled(q, offset), rope(q, None, *tables, offsets=offset))


def test_transforms(device: str) -> None:
    tables = _tables(torch.float64, device)
    x = randn((3, 2, TIME, 1, 16), torch.float64, device)
    mapped = torch.func.vmap(lambda x: rope(x, None, *tables))(x)
    torch.testing.assert_close(mapped, torch.stack([rope(part, None, *tables) for part in x]))
    _, tangent = torch.func.jvp(lambda x: rope(x, None, *tables), (x[0],), (x[1],))
    torch.testing.assert_close(tangent, rope(x[1], None, *tables))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["auto", "triton", "reference"])
def test_cuda_graph(backend: str) -> None:
    """Calls do not wait for the device; each replay reads offsets on it."""
    tables = _tables(torch.bfloat16, "cuda")
    q, k = (_heads(torch.bfloat16, "cuda") for _ in range(2))
    offsets = torch.zeros(BATCH, dtype=torch.int64, device="cuda")

    def call() -> Any:
        plain = rope(q, None, *tables, offsets=1, backend=backend)
        return (plain, *rope(q, k, *tables, offsets=offsets, backend=backend))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = call()
    for offset in (2, 4):
        offsets.fill_(offset)
        q.normal_()
        graph.replay()
        for y, e in zip(results, call(), strict=True):
            assert torch.equal(y, e)


def test_as_transformers_has_it() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = randn((2, 4, 7, 16), torch.float32), randn((2, 2, 7, 16), torch.float32)
    cos, sin = _tables(torch.float32, "cpu")
    wide = [torch.cat([t, t], -1)[:7].expand(2, 7, 16) for t in (cos, sin)]
    expected = llama.apply_rotary_pos_emb(q, k, *wide)
    for y, e in zip(rope(q, k, cos, sin, heads_first=True), expected, strict=True):
        torch.testing.assert_close(y, e)


# ---- arguments ----------------------------------------------------------------------------------


def test_bad_arguments() -> None:
    q = _heads(torch.float32, "cpu")
    cos, sin = _tables(torch.float32, "cpu")
    at = torch.zeros(3, BATCH, TIME, dtype=torch.int64)

    def expect(kind: type[Exception], words: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(kind, match=f"^rope: {words}"):
            rope(*arguments, **options)

    expect(ValueError, "cos requires a gradient", q, None, cos.clone().requires_grad_(), sin)
    expect(TypeError, "offsets is 1.5, expected an int or a Tensor", q, None, cos, sin, offsets=1.5)
    expect(TypeError, "heads_first is 1, expected True", q, None, cos, sin, heads_first=1)
    expect(ValueError, "sections is missing", q, None, cos, sin, position_ids=at)
    expect(ValueError, r"sections is \(1, 2, 3\), expected three numbers of frequencies, 8 in all",
           q, None, cos, sin, position_ids=at, sections=(1, 2, 3))  # fmt: skip
    expect(ValueError, "sections is given", q, None, cos, sin, position_ids=at[0],
           sections=(2, 3, 3))  # fmt: skip
    expect(TypeError, "sections is 3, expected three ints", q, None, cos, sin, position_ids=at,
           sections=3)  # fmt: skip
    expect(ValueError, r"position_ids has shape \(5,\), expected one that broadcasts to \(2, 7\)",
           q, None, cos, sin, position_ids=torch.zeros(5, dtype=torch.int64))  # fmt: skip
    expect(ValueError, "offset is 3, expected 0 with position_ids", q, None, cos, sin,
           position_ids=at[0], offsets=3)  # fmt: skip
    expect(ValueError, "offsets is given, expected none with position_ids", q, None, cos, sin,
           position_ids=at[0], offsets=at[0, :, 0])  # fmt: skip
    expect(ValueError, "offsets has 3 elements, expected 2", q, None, cos, sin,
           offsets=at[:, 0, 0])  # fmt: skip
    starts = torch.tensor([0, 4, 2, 9], dtype=torch.int32)
    expect(ValueError, "cu_seqlens is given, expected none with q of 4", q, None, cos, sin,
           cu_seqlens=starts)  # fmt: skip
    expect(ValueError, "cu_seqlens falls from 4 to 2", q[0], None, cos, sin, cu_seqlens=starts)
    expect(ValueError, "cu_seqlens ends with 9, expected at most 7", q[0], None, cos, sin,
           cu_seqlens=starts[::3].contiguous())  # fmt: skip
    expect(ValueError, "cu_seqlens starts with 4", q[0], None, cos, sin, cu_seqlens=starts[1:2])
    wide = torch.zeros(12, 9)
    expect(ValueError, r"cos has 9 columns, expected 1 to 8 \(pairs", q, None, wide, wide)
    expect(TypeError, "cos is float64, expected bfloat16 or float32", q.bfloat16(), None,
           cos.double(), sin.double())  # fmt: skip


def test_in_place_writes_nothing_where_it_refuses() -> None:
    q = _heads(torch.float32, "cpu")
    before = q.clone()
    cos, sin = _tables(torch.float32, "cpu")
    with pytest.raises(ValueError, match=r"^rope: q has position 12"):
        rope(q, None, cos, sin, offsets=8, inplace=True)
    with pytest.raises(ValueError, match=r"^rope: sin has shape"):
        rope(q, None, cos, sin[1:], inplace=True)
    assert torch.equal(q, before)
