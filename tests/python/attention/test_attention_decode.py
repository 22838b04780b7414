# SPDX-License-Identifier: MIT
"""Attention over a cache: the formula and the kernels against attention over the whole sequence.
Rows of the caches that no token lies in are NaN. On CUDA 64, 128 and 256 columns of 16 bits run by
tensor cores, odd ones and float32 by the plain engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.bench.cases import attention_decode
from transformer_kernels.measure.case import Case, Problem
from transformer_kernels.measure.verify import Reference
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class Sequences:
    """Whole sequences, their last tokens new; and the caches of all before them."""

    lengths: tuple[int, ...] = (0, 1, 37, 64)
    new: int = 1
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    value_dim: int = 24
    page: int = 0
    capacity: int = 80
    heads_first: bool = False
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __post_init__(self) -> None:
        total = [length + self.new for length in self.lengths]
        kinds: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        self.q = [randn((self.new, self.heads, self.dim), **kinds) for _ in total]
        self.k = [randn((n, self.kv_heads, self.dim), **kinds) for n in total]
        self.v = [randn((n, self.kv_heads, self.value_dim), **kinds) for n in total]
        columns = -(-self.capacity // self.page) if self.page else 1
        size = self.page or self.capacity
        pages = torch.randperm(2 * len(total) * columns if self.page else len(total)).tolist()
        self.table = torch.full((len(total), columns), -1, dtype=torch.int32)
        self.k_cache = torch.full((len(pages), size, self.kv_heads, self.dim), torch.nan, **kinds)
        self.v_cache = self.k_cache.new_full((*self.k_cache.shape[:-1], self.value_dim), torch.nan)
        for b, n in enumerate(total):
            for i in range(-(-n // size)):
                self.table[b, i] = pages[b * columns + i] if self.page else b
            for cache, rows in ((self.k_cache, self.k[b]), (self.v_cache, self.v[b])):
                for j in range(self.lengths[b]):
                    cache[int(self.table[b, j // size]), j % size] = rows[j]
        self.table = self.table.to(self.device)

    def laid_out(self, x: Tensor) -> Tensor:
        """(B, H, T, D) where heads come first."""
        return x.transpose(1, 2).contiguous() if self.heads_first else x

    def call(self, **on: Any) -> Any:
        """Runs the op on the caches, which then hold the new tokens."""
        if self.heads_first:
            self.k_cache, self.v_cache = (self.laid_out(x) for x in (self.k_cache, self.v_cache))
        rows = (
            torch.stack(self.q),
            *(torch.stack([x[len(x) - self.new :] for x in many]) for many in (self.k, self.v)),
        )
        q, k, v = (self.laid_out(x) for x in rows)
        if self.page:
            on["page_table"] = self.table
        lengths = torch.tensor(self.lengths, device=self.device)
        return F.attention_with_kv_cache(
            q, self.k_cache, self.v_cache, k, v, lengths=lengths, return_lse=True,
            heads_first=self.heads_first, **on,
        )  # fmt: skip

    def expected(self, rotate: Any = None, **on: Any) -> tuple[Tensor, Tensor]:
        """Attention to each whole sequence alone, in float64."""
        outs, lses = [], []
        for q, k, v in zip(self.q, self.k, self.v, strict=True):
            q, k, v = q.double(), k.double(), v.double()
            if rotate is not None:
                start = len(k) - self.new  # keys of the cache are as they were kept
                q, k = rotate(q, start), torch.cat([k[:start], rotate(k[start:], start)])
            out, lse = F.attention(
                q[None], k[None], v[None], return_lse=True, backend="reference", **on
            )
            outs.append(out)
            lses.append(lse)
        return torch.cat(outs), torch.cat(lses)


def _check(s: Sequences, ours: dict[str, Any], **on: Any) -> None:
    out, lse = s.call(causal=True, **ours)
    expected, expected_lse = s.expected(causal=True, **on)
    out = out.transpose(1, 2) if s.heads_first else out
    # In float32 the scores' rounding counts: their size times that of the values.
    magnitude = 40.0 if s.dtype is torch.float32 else 0.0
    assert_close_to_reference(out, expected.to(s.dtype), expected, magnitude=magnitude)
    torch.testing.assert_close(lse, expected_lse.float(), rtol=1e-5, atol=1e-5)


@pytest.fixture(params=("auto", "reference"))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("stored", DTYPES, ids=str)
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("heads_first", [False, True])
def test_against_the_whole_sequence(
    backend: str, stored: torch.dtype, page: int, heads_first: bool, device: str
) -> None:
    s = Sequences(dtype=stored, page=page, heads_first=heads_first, new=2, device=device)
    _check(s, {"backend": backend})


def test_features(backend: str, device: str) -> None:
    """Window, cap, ALiBi and sinks, alone and together, with rows of a long sequence."""
    slopes, sinks = torch.rand(4, device=device) / 8, torch.randn(4, device=device)
    features: tuple[dict[str, Any], ...] = (
        {"window": (20, 0)}, {"softcap": 2.0}, {"alibi_slopes": slopes}, {"sinks": sinks},
        {"window": (9, -1), "softcap": 3.0, "alibi_slopes": slopes, "sinks": sinks, "scale": 0.2},
    )  # fmt: skip
    for feature in features:
        s = Sequences((0, 70, 400), new=3, page=16, capacity=416, device=device)
        _check(s, {"backend": backend, **feature}, **feature)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation(backend: str, interleaved: bool, device: str) -> None:
    cos, sin = (x.to(device) for x in F.rope_tables(80, 12))

    def rotate(x: Tensor, offset: int) -> Tensor:
        y = F.rope(
            x.double(), None, cos.double(), sin.double(), offsets=offset, interleaved=interleaved,
            backend="reference",
        )  # fmt: skip
        assert isinstance(y, Tensor)
        return y

    s = Sequences(new=3, page=16, device=device)
    ours = {"backend": backend, "cos": cos, "sin": sin, "interleaved": interleaved}
    _check(s, ours, rotate=rotate)
    start = s.lengths[2]
    page, row = s.table[2, start // 16], start % 16
    expected = rotate(s.k[2], 0)[start].float()
    torch.testing.assert_close(s.k_cache[page, row], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(s.v_cache[page, row], s.v[2][start])


def test_int8(backend: str, device: str) -> None:
    """A cache of int8 is within half a step of the tokens, and the result is that of its
    numbers."""
    s = Sequences(new=3, page=16, device=device)
    scales = [cache.abs().amax(-1) / 127 for cache in (s.k_cache, s.v_cache)]
    s.k_cache, s.v_cache = (
        (cache / scale.unsqueeze(-1)).nan_to_num(7).round().to(torch.int8)
        for cache, scale in zip((s.k_cache, s.v_cache), scales, strict=True)
    )
    out, lse = s.call(causal=True, backend=backend, k_scale=scales[0], v_scale=scales[1])
    for cache, scale, rows in zip((s.k_cache, s.v_cache), scales, (s.k, s.v), strict=True):
        numbers = cache * scale.unsqueeze(-1)
        for b, row in enumerate(rows):
            rows[b] = numbers[s.table[b].long().clamp(0)].flatten(0, 1)[: len(row)]
            steps = row.abs().amax(-1, keepdim=True) / 127
            assert ((rows[b] - row).abs() <= 0.502 * steps).all()
    expected, expected_lse = s.expected(causal=True)
    assert_close_to_reference(out, expected.float(), expected, magnitude=40.0)
    torch.testing.assert_close(lse, expected_lse.float(), rtol=1e-5, atol=1e-5)


def test_without_keys(backend: str, device: str) -> None:
    """Nothing to see gives zeros and -inf, or the sink alone."""
    q, cache = torch.randn(2, 3, 4, 8, device=device), torch.full((2, 16, 2, 8), torch.nan)
    cache = cache.to(device)
    for sinks in (None, torch.tensor([0.0, 1.0, -2.0, 5.0], device=device)):
        out, lse = F.attention_with_kv_cache(
            q, cache, cache.clone(), lengths=0, sinks=sinks, return_lse=True, backend=backend
        )
        assert torch.equal(out, torch.zeros_like(q))
        empty = torch.full((4,), -torch.inf, device=device) if sinks is None else sinks
        torch.testing.assert_close(lse, empty.view(1, 4, 1).expand(2, 4, 3))


def test_full_cache_and_kinds_of_lengths(device: str) -> None:
    """None stands for the capacity, an int for every sequence, and int32 is int64."""
    q, k_cache, v_cache = torch.randn(3, 2, 1, 32, 4, 8, device=device).unbind()
    full = F.attention_with_kv_cache(q[:, 0, :1], k_cache[:, 0], v_cache[:, 0])
    expected = F.attention(q[:, 0, :1], k_cache[:, 0], v_cache[:, 0], backend="reference")
    torch.testing.assert_close(full, expected)
    lengths: Any
    for lengths in (32, torch.full((2,), 32, device=device, dtype=torch.int32)):
        again = F.attention_with_kv_cache(
            q[:, 0, :1], k_cache[:, 0], v_cache[:, 0], lengths=lengths
        )
        assert torch.equal(again, full)


def test_numbers_of_the_device_are_not_read_as_pages(device: str) -> None:
    """The formula drops tokens without a place, and sees no key without one: CUDA's contract."""
    q, k = torch.randn(2, 1, 2, 8, device=device), torch.randn(2, 1, 2, 8, device=device)
    cache = torch.zeros(2, 16, 2, 8, device=device)
    table = torch.tensor([[0, -1], [1, 7]], dtype=torch.int32, device=device)
    lengths = torch.tensor([32, 16], device=device)
    F.attention_with_kv_cache(
        q, cache, cache.clone(), k, k, lengths=lengths, page_table=table, backend="reference"
    )
    assert not cache.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache_seqlens": 3}, "cache_seqlens is not an argument, expected lengths"),
        ({"block_table": 3}, "block_table is not an argument, expected page_table"),
        ({"softmax_scale": 3}, "softmax_scale is not an argument, expected scale"),
        ({"rotary_cos": 3}, "rotary_cos is not an argument, expected cos"),
        ({"lengths": 64}, r"lengths\[0\] is 64, expected 0 to 63"),
        ({"lengths": 2.5}, "lengths is 2.5, expected an int"),
        ({"lengths": None}, "lengths is missing, expected the tokens in the cache before k"),
        ({"k": None}, "k is missing, expected k and v, both or neither"),
        ({"window": 3}, "^attention_with_kv_cache: window is 3, expected two ints"),
        *(
            (
                {"softcap": cap, "backend": backend},
                re.escape(f"softcap is {cap:g}, expected a finite number"),
            )
            for cap in (float("inf"), float("nan"), 1e39, -1.0)
            for backend in ("auto", "reference")
        ),
        ({"scale": float("inf"), "backend": "reference"}, "scale is inf, expected a finite number"),
        ({"backend": "triton"}, "backend is 'triton', expected"),
        ({"q": torch.zeros(2, 1, 4, 8, requires_grad=True)}, "q requires a gradient, expected a"),
        ({"q": torch.zeros(2, 1, 4, 8, dtype=torch.float64)}, "q is float64, expected float32"),
        ({"q": torch.zeros(2, 1, 8)}, "q has 3 dimensions, expected 4"),
        ({"page_table": torch.zeros(2, 1)}, "page_table is float32, expected int32"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    given = {name: torch.zeros(2, 1, 4, 8) for name in "qkv"}
    caches = {f"{name}_cache": torch.zeros(2, 64, 4, 8) for name in "kv"}
    with pytest.raises((TypeError, ValueError), match=message):
        F.attention_with_kv_cache(**{**given, **caches, "lengths": 3, **change})
    assert not caches["k_cache"].any()


def test_compiles_and_checks(device: str) -> None:
    """One graph without a break, which knows that the caches change."""

    def step(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor) -> Tensor:
        y = F.attention_with_kv_cache(q, k_cache, v_cache, q, q, lengths=lengths)
        return y + k_cache.sum()

    q = torch.randn(2, 1, 4, 8, device=device)
    lengths = torch.tensor([3, 0], device=device)
    results = []
    run: Any
    for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        caches = torch.zeros(2, 2, 16, 4, 8, device=device)
        results.append((run(q, *caches, lengths), caches))
    torch.testing.assert_close(results[0], results[1])
    torch.library.opcheck(
        torch.ops.transformer_kernels.attention_with_kv_cache.default,
        (q, *torch.zeros(2, 2, 16, 4, 8, device=device), q, q, lengths, *(None,) * 7, False, 0.3,
         -1, 0, 0.0),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


def test_threads_do_not_change_bits(one_thread: None) -> None:
    s = Sequences((3000, 5, 0), new=2, page=64, capacity=3008)
    alone, _ = s.call(causal=True)
    torch.set_num_threads(2)
    together, _ = s.call(causal=True)
    assert torch.equal(alone, together)


# ---- what holds bit for bit ---------------------------------------------------------------------


_STORED = ("float32", "float16", "bfloat16", "int8")


def _draw(
    lengths: tuple[int, ...],
    kind: str,
    device: str,
    *,
    dim: int = 64,
    new: int = 1,
    page: int = 16,
    longest: int = 0,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call with pages in random order and one with a contiguous cache of the same tokens. What is
    no token's is NaN, as are scales there."""
    dtype = torch.bfloat16 if kind == "int8" else getattr(torch, kind)
    kinds: dict[str, Any] = {"device": device, "dtype": dtype}
    columns = max(longest, *lengths) // page + 2
    batch, size = len(lengths), columns * page
    drawn = {
        "q": randn((batch, new, 8, dim), **kinds), "k": randn((batch, new, 2, dim), **kinds),
        "v": randn((batch, new, 2, dim), **kinds),
        "lengths": torch.tensor(lengths, device=device, dtype=torch.int32),
    }  # fmt: skip
    dense: dict[str, Any] = {}
    for name in ("k", "v"):
        if kind == "int8":
            cache = torch.randint(-127, 128, (batch, size, 2, dim), device=device).to(torch.int8)
            dense[f"{name}_scale"] = torch.rand(batch, size, 2, device=device) / 100 + 1e-3
        else:
            cache = randn((batch, size, 2, dim), **kinds)
        dense[f"{name}_cache"] = cache
    beyond = torch.arange(size, device=device) >= drawn["lengths"][:, None]
    for x in dense.values():
        x[beyond] = torch.nan if x.is_floating_point() else 127
    order = torch.randperm(2 * batch * columns, device=device)[: batch * columns]
    paged: dict[str, Any] = {}
    for name, x in dense.items():
        pages = x.unflatten(1, (columns, page)).flatten(0, 1)
        nothing = torch.nan if x.is_floating_point() else 127
        paged[name] = pages.new_full((2 * batch * columns, *pages.shape[1:]), nothing)
        paged[name][order] = pages
    paged["page_table"] = order.int().view(batch, columns)
    needed = torch.arange(columns, device=device) * page < drawn["lengths"][:, None] + new
    paged["page_table"][~needed] = -7
    return drawn | paged, drawn | dense


def _bits(given: dict[str, Any], **on: Any) -> list[Tensor]:
    return list(F.attention_with_kv_cache(**given, causal=True, return_lse=True, **on))


def _assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.isfinite().all()
        assert torch.equal(x, y)


@pytest.mark.parametrize("kind", _STORED)
@pytest.mark.parametrize("dim", [33, 64, 128, 256])
def test_pages_change_no_bit(kind: str, dim: int, device: str) -> None:
    """Neither do neighbours, in rows of one head or of several."""
    lengths = (0, 1, 600, 2047) if device == "cuda" else (0, 1, 300)
    for new in (1, 4):
        paged, dense = _draw(lengths, kind, device, dim=dim, new=new)
        expected = _bits(dense)
        _assert_same(_bits(paged), expected)
        for b in range(len(lengths)):
            alone = {name: x[b : b + 1] for name, x in dense.items()}
            _assert_same(_bits(alone), [x[b : b + 1] for x in expected])


@pytest.mark.parametrize("kind", _STORED)
def test_bits_repeat(kind: str, device: str) -> None:
    given, _ = _draw((3, 900, 2500), kind, device, new=2)
    expected = _bits(given)
    for _ in range(100 if device == "cuda" else 3):
        _assert_same(_bits(given), expected)


def _assert_near(out: Tensor, expected: Tensor, kind: str) -> None:
    rough = {"float32": 4e-5, "float16": 8e-3}.get(kind, 4e-2)
    torch.testing.assert_close(out, expected, rtol=rough, atol=rough * 0.5)


@pytest.mark.parametrize("kind", _STORED)
def test_against_the_formula(kind: str, device: str) -> None:
    """Shapes of models, windows over pages that were given back, and sinks."""
    for page, dim, new in ((16, 128, 1), (64, 64, 4), (256, 96, 2)):
        given, _ = _draw((0, 1, 77, 1000), kind, device, dim=dim, new=new, page=page)
        for on in ({}, {"window": (40, 0), "sinks": torch.randn(8, device=device)}):
            copies = [{name: x.clone() for name, x in given.items()} for _ in range(2)]
            if "window" in on and device == "cuda":  # a CPU refuses pages that do not exist
                table = copies[0]["page_table"]
                for b, length in enumerate((0, 1, 77, 1000)):
                    table[b, : max(length - new - 40, 0) // page] = -1
            (out, lse), (expected, expected_lse) = (
                _bits(copies[0], **on), _bits(copies[1], backend="reference", **on),
            )  # fmt: skip
            _assert_near(out, expected, kind)
            torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", _STORED)
def test_graphs_follow_lengths_and_pages(kind: str) -> None:
    """A captured call reads lengths and tables when it is replayed."""
    static, _ = _draw((5, 40, 1500), kind, "cuda", new=2)
    _bits(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _bits(static)
    for lengths in ((5, 40, 1500), (0, 1, 2), (700, 3, 256), (1500, 1500, 1500)):
        given, _ = _draw(lengths, kind, "cuda", new=2, longest=1500)
        for name, x in given.items():
            static[name].copy_(x)
        graph.replay()
        _assert_same(found, _bits(given))


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["cuda", "reference"])
@pytest.mark.parametrize("kind", _STORED)
def test_cards_drop_tokens_without_a_place(kind: str, backend: str) -> None:
    """Pages that do not exist hide their keys; lengths that do not fit write nothing."""
    given, _ = _draw((64, 900), kind, "cuda", new=2)
    given["page_table"][0, 1] = 10**6
    given["page_table"][1, 20] = -1
    same = {name: x.clone() for name, x in given.items()}
    _assert_near(_bits(given, backend=backend)[0], _bits(same, backend="reference")[0], kind)
    before = {name: x.clone() for name, x in given.items()}
    for bad in (-(2**30), 2**30):
        given["lengths"].fill_(bad)
        F.attention_with_kv_cache(**given, window=(3, 3), backend=backend)
        for name in ("k_cache", "v_cache", "k_scale", "v_scale"):
            if name in given:
                assert torch.equal(given[name].nan_to_num(7), before[name].nan_to_num(7))


def test_one_key_of_a_huge_negative_score(device: str) -> None:
    q, k = (
        torch.full((1, 1, 1, 16), 1e15, device=device),
        torch.full((1, 1, 1, 16), -1e15).to(device),
    )
    v = torch.full_like(q, 3.0)
    out, lse = F.attention_with_kv_cache(q, k, v, return_lse=True)
    assert torch.equal(out, v)
    torch.testing.assert_close(lse, torch.full_like(lse, -4e30))


# ---- benchmarks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", attention_decode.OPS, ids=lambda case: case.name)
@pytest.mark.parametrize("provider", ["ours", "torch"])
def test_benchmarks(case: Case, provider: str) -> None:
    kinds = torch.float32, torch.float32
    arguments = case.make(
        Problem(case.name, "forward", *kinds, (2, 256, 4, 2, 8)), torch.device("cpu")
    )
    with torch.no_grad():
        call = case.build(provider, "forward", lambda function: function)(arguments)
        assert Reference(case, "forward", arguments).check(call, 4) >= 0
    of_cache = arguments["k_cache"].nbytes
    if case.name.endswith("int8"):
        of_cache = of_cache // 4 + of_cache // 8  # bytes, and a scale for each 8 of them
    size = arguments["q"].nbytes + of_cache
    assert case.bytes_moved("forward", arguments) == 2 * size
