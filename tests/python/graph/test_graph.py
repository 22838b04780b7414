# SPDX-License-Identifier: MIT
"""The numbers of the graph ops; declared/test_declare.py tests the declarations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.testing.inputs import LAYOUTS, poisoned, randn
from transformer_kernels.testing.passes import both_passes
from transformer_kernels.testing.tolerance import assert_close_to_reference

BACKENDS = ("auto", "triton", "reference")
REDUCES = ("sum", "mean", "max")
# (sources, targets, edges): nodes without edges, none at all, one segment that is long.
GRAPHS = {
    "sparse": (30, 50, 60),
    "dense": (9, 7, 400),
    "no edges": (4, 5, 0),
    "one target": (40, 1, 1500),
}


def _edges(name: str, device: str, dtype: torch.dtype = torch.int64) -> Tensor:
    sources, targets, edges = GRAPHS[name]
    drawn = torch.stack([torch.randint(sources, (edges,)), torch.randint(targets, (edges,))])
    return drawn.to(dtype).to(device)


def _graph(name: str, device: str, dtype: torch.dtype = torch.int64) -> tuple[F.Graph, Tensor]:
    edges = _edges(name, device, dtype)
    return F.Graph.from_edges(edges, GRAPHS[name][:2]), edges.long()


def _skip_slow(backend: str, device: str, programs: int) -> None:
    if backend == "triton" and device == "cpu" and programs > 120:
        pytest.skip("Triton's interpreter takes milliseconds a program")


def _check(
    ours: Any, theirs: Any, tensors: list[Tensor], shape: tuple[int, ...], terms: int
) -> None:
    """Holds both passes, from poisoned memory, to the tolerance rule."""
    dy = randn(shape, tensors[0].dtype, tensors[0].device)
    with poisoned():
        found = both_passes(ours, tensors, dy)
    in_torch = both_passes(theirs, tensors, dy)
    exact = both_passes(theirs, [x.double() for x in tensors], dy.double())
    # In float64 the reference is no more exact than what is held to it.
    of_term = {torch.float64: 8, torch.float32: 1}.get(tensors[0].dtype, 0)
    magnitude = of_term * (1 + terms)
    for name, a, b, c in zip(("y", "dx", "second"), found, in_torch, exact, strict=False):
        assert a.dtype == tensors[0].dtype
        assert_close_to_reference(a, b, c, name, magnitude)


def _first_largest(rows: Tensor) -> Tensor:
    """A maximum whose gradient goes to the first of equal elements."""
    if len(rows) == 0:
        return rows.sum(0)
    is_top = rows == rows.detach().amax(0)
    return torch.where(is_top & (is_top.cumsum(0) == 1), rows, 0).sum(0)


def _reduced(messages: Tensor, target: Tensor, count: int, reduce: str) -> Tensor:
    """Reduces in PyTorch's operations."""
    if reduce == "max":
        return torch.stack([_first_largest(messages[target == i]) for i in range(count)])
    y = messages.new_zeros(count, messages.shape[1]).index_add(0, target, messages)
    counts = torch.bincount(target, minlength=count).clamp(min=1).unsqueeze(1)
    return y / counts.to(y.dtype) if reduce == "mean" else y


def _message(x: Tensor, weight: Tensor | None, source: Tensor) -> Tensor:
    rows = x[source]
    if weight is None:
        return rows
    heads = weight.shape[1]
    return (rows.unflatten(1, (heads, -1)) * weight.unsqueeze(-1)).flatten(1)


# ---- gather_reduce ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize(
    ("name", "cols", "heads"),
    [
        ("sparse", 33, 0),
        ("sparse", 64, 1),
        ("dense", 24, 3),
        ("no edges", 24, 3),
        ("one target", 130, 0),
        ("one target", 64, 2),
    ],
)
def test_gather_reduce(
    name: str, cols: int, heads: int, reduce: str, backend: str, device: str, dtype: torch.dtype
) -> None:
    _skip_slow(backend, device, GRAPHS[name][1] + GRAPHS[name][2])
    graph, (source, target) = _graph(name, device, torch.int32 if heads else torch.int64)
    sources, targets, edges = GRAPHS[name]
    tensors = [randn((sources, cols), dtype, device)]
    if heads:
        tensors.append(randn((edges, heads), dtype, device))
    _check(
        lambda x, w=None: F.gather_reduce(x, graph, w, reduce, backend=backend),
        lambda x, w=None: _reduced(_message(x, w, source), target, targets, reduce),
        tensors,
        (targets, cols),
        edges,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout: str, backend: str, device: str, dtype: torch.dtype) -> None:
    graph, (source, target) = _graph("sparse", device)
    x, weight = randn((30, 24), dtype, device), randn((60, 1), dtype, device)
    x, weight = LAYOUTS[layout](x), LAYOUTS[layout](weight)
    _check(
        lambda x: F.gather_reduce(x, graph, weight, backend=backend),
        lambda x: _reduced(_message(x, weight.to(x.dtype), source), target, 50, "sum"),
        [x],
        (50, 24),
        60,
    )


def test_dimensions_behind_the_first(device: str) -> None:
    graph, (source, target) = _graph("sparse", device)
    x = randn((30, 2, 3, 4), torch.float32, device)
    expected = _reduced(x.flatten(1)[source], target, 50, "sum").view(50, 2, 3, 4)
    torch.testing.assert_close(F.gather_reduce(x, graph), expected)
    weight = randn((60,), torch.float32, device)
    flat = F.gather_reduce(x[:, 0, 0, 0], graph, weight)
    torch.testing.assert_close(flat, _reduced(x[:, 0, 0, :1][source] * weight.unsqueeze(1), target,
                                              50, "sum")[:, 0])  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_of_equal_messages_has_the_gradient(backend: str, device: str) -> None:
    edges = torch.tensor([[1, 0, 2, 3], [0, 0, 0, 1]], device=device)
    graph = F.Graph.from_edges(edges, (4, 3))
    x = torch.tensor([[2.0, 1], [2, 3], [1, 3], [-1, torch.nan]], device=device)
    y, dx = both_passes(lambda x: F.gather_reduce(x, graph, reduce="max", backend=backend), [x],
                        torch.ones(3, 2, device=device))  # fmt: skip
    expected = torch.tensor([[2.0, 3], [-1, torch.nan], [0, 0]], device=device)
    torch.testing.assert_close(y, expected, equal_nan=True)
    expected = torch.tensor([[0.0, 0], [1, 1], [0, 0], [1, 1]], device=device)
    torch.testing.assert_close(dx, expected)


@pytest.mark.parametrize("reduce", REDUCES)
def test_derivatives(reduce: str, device: str) -> None:
    graph, _ = _graph("dense", device)
    x = randn((9, 6), torch.float64, device).requires_grad_()
    weight = randn((400, 2), torch.float64, device).requires_grad_()

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return F.gather_reduce(x, graph, weight, reduce)

    assert torch.autograd.gradcheck(function, (x, weight), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x, weight), fast_mode=True)


@pytest.mark.parametrize("reduce", REDUCES)
def test_repeatable(reduce: str, device: str) -> None:
    """Results repeat bit by bit, also where segments are cut into pieces."""
    edges = torch.stack([torch.randint(70, (9000,)), (torch.rand(9000) ** 6 * 50).long()])
    graph = F.Graph.from_edges(edges.to(device), (70, 50))
    tensors = [randn((70, 40), torch.float32, device), randn((9000, 4), torch.float32, device)]
    dy = randn((50, 40), torch.float32, device)
    runs = [
        both_passes(lambda x, w: F.gather_reduce(x, graph, w, reduce), tensors, dy)
        for _ in range(3)
    ]
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("count", [513, 70_000])
def test_a_long_segment(count: int, reduce: str, device: str) -> None:
    """The sum is exact only if its parts are wide."""
    offsets = torch.tensor([0, 1, 1 + count, 1 + count, 3 + count], device=device)
    x = torch.randint(-8, 9, (3 + count, 24), device=device)
    y, dx = both_passes(lambda x: F.segment_reduce(x, offsets, reduce), [x.to(torch.bfloat16)],
                        torch.ones(4, 24, device=device))  # fmt: skip
    target = torch.repeat_interleave(torch.arange(4, device=device), offsets.diff())
    exact = _reduced(x.double(), target, 4, reduce)
    torch.testing.assert_close(y, exact.to(torch.bfloat16), rtol=1e-2 * (reduce == "mean"), atol=0)
    if reduce == "sum":
        assert dx.eq(1).all()
    if reduce == "max":
        torch.testing.assert_close(dx.float().sum(0), torch.full((24,), 3.0, device=device))


# ---- segments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_segment_reduce(
    reduce: str, index: torch.dtype, backend: str, device: str, dtype: torch.dtype
) -> None:
    _skip_slow(backend, device, 70)
    counts = torch.tensor([3, 0, 17, 1, 0, 40, 0], device=device)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(index)
    target = torch.repeat_interleave(torch.arange(7, device=device), counts)
    x = randn((61, 40), dtype, device)
    _check(
        lambda x: F.segment_reduce(x, offsets, reduce, backend=backend),
        lambda x: _reduced(x, target, 7, reduce),
        [x],
        (7, 40),
        61,
    )


def _softmax(x: Tensor, target: Tensor, count: int) -> Tensor:
    index = target.unsqueeze(1).expand_as(x)
    top = x.new_zeros(count, x.shape[1]).scatter_reduce(0, index, x, "amax", include_self=False)
    powers = (x - top.detach()[target]).exp()
    return powers / _reduced(powers, target, count, "sum")[target]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "cols"),
    [("sparse", 1), ("sparse", 8), ("dense", 3), ("dense", 33), ("no edges", 4), ("one target", 1)],
)
def test_segment_softmax(
    name: str, cols: int, backend: str, device: str, dtype: torch.dtype
) -> None:
    """Covers edges in any order, and rows in the order of their segments."""
    _, targets, edges = GRAPHS[name]
    _skip_slow(backend, device, edges)
    graph, (_, target) = _graph(name, device)
    x = randn((edges, cols), dtype, device)
    for of, numbers in ((graph, target), (graph.offsets, target.sort().values)):
        _check(
            lambda x, of=of: F.segment_softmax(x, of, backend=backend),
            lambda x, numbers=numbers: _softmax(x, numbers, targets),
            [x],
            (edges, cols),
            0,
        )


@pytest.mark.parametrize("cols", [1, 8])
def test_softmax_of_a_long_segment(cols: int, device: str) -> None:
    offsets = torch.tensor([0, 2, 5002], device=device)
    x = randn((5002, cols), torch.float32, device)
    target = torch.repeat_interleave(torch.arange(2, device=device), offsets.diff())
    _check(
        lambda x: F.segment_softmax(x, offsets),
        lambda x: _softmax(x, target, 2), [x], (5002, cols), 0,
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_softmax_of_special_numbers(backend: str, device: str) -> None:
    """NaN stays in its column of its segment; large numbers are exact."""
    x = torch.tensor([[1e4, torch.nan], [1e4, 0], [-torch.inf, 5], [5, 5]], device=device)
    offsets = torch.tensor([0, 2, 4], device=device)
    y = F.segment_softmax(x, offsets, backend=backend)
    expected = torch.tensor([[0.5, torch.nan], [0.5, torch.nan], [0, 0.5], [1, 0.5]], device=device)
    torch.testing.assert_close(y, expected, equal_nan=True)


def test_softmax_derivatives(device: str) -> None:
    graph, _ = _graph("dense", device)
    x = randn((400, 2), torch.float64, device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: F.segment_softmax(x, graph), (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: F.segment_softmax(x, graph), (x,), fast_mode=True)


# ---- segments of all lengths --------------------------------------------------------------------

# On either side of what a thread, a warp or a CTA owns, and some that have several of these.
# One segment has so many pieces that a card merges them in strips; a processor merges any number.
LONGEST = 100_000 if torch.cuda.is_available() else 20_000
LENGTHS = (0, 1, 15, 16, 17, 0, 0, 2047, 2048, 2049, 3, LONGEST, *([16] * 70), 513, 0)
# Columns, and elements that rows are moved by from where they would be aligned.
WIDTHS = ((1, 0), (3, 0), (8, 0), (8, 1), (64, 0), (65, 0))


def _ragged(index: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Offsets, and the segment of each row."""
    counts = torch.tensor(LENGTHS, device=device)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(index)
    return offsets, torch.repeat_interleave(torch.arange(len(LENGTHS), device=device), counts)


def _moved(rows: int, cols: int, by: int, dtype: torch.dtype, device: str) -> Tensor:
    return randn((rows, cols + by), dtype, device)[:, by:]


@pytest.mark.parametrize(("cols", "moved"), WIDTHS)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_sums_of_all_lengths(
    cols: int, moved: int, reduce: str, device: str, dtype: torch.dtype
) -> None:
    offsets, target = _ragged(torch.int32 if cols == 3 else torch.int64, device)
    segments, edges = len(LENGTHS), len(target)
    _check(
        lambda x: F.segment_reduce(x, offsets, reduce),
        lambda x: _reduced(x, target, segments, reduce),
        [_moved(edges, cols, moved, dtype, device)],
        (segments, cols),
        edges,
    )


@pytest.mark.parametrize(("cols", "moved"), WIDTHS)
def test_softmax_of_all_lengths(cols: int, moved: int, device: str, dtype: torch.dtype) -> None:
    offsets, target = _ragged(torch.int32 if cols == 8 else torch.int64, device)
    _check(
        lambda x: F.segment_softmax(x, offsets),
        lambda x: _softmax(x, target, len(LENGTHS)),
        [_moved(len(target), cols, moved, dtype, device)],
        (len(target), cols),
        0,
    )


@pytest.mark.parametrize(("cols", "heads"), [(1, 1), (8, 2), (64, 1), (64, 8), (65, 5), (300, 1)])
@pytest.mark.parametrize("ordered", [False, True])
def test_products_of_all_lengths(
    cols: int, heads: int, ordered: bool, device: str, dtype: torch.dtype
) -> None:
    _, target = _ragged(torch.int64, device)
    sources, edges = 40, len(target)
    numbers = torch.randperm(edges) if ordered else torch.arange(edges)
    drawn = torch.stack([torch.randint(sources, (edges,)).to(device), target[numbers.to(device)]])
    graph = F.Graph.from_edges(drawn, (sources, len(LENGTHS)))
    a = randn((len(LENGTHS), heads, cols // heads), dtype, device)
    b = randn((sources, heads, cols // heads), dtype, device)
    _check_products(graph, drawn, a, b)


def _check_products(graph: F.Graph, edges: Tensor, a: Tensor, b: Tensor) -> None:
    found = F.edge_dot(a, b, graph)
    factors = a[edges[1]], b[edges[0]]
    expected = (factors[0] * factors[1]).sum(-1)
    exact = (factors[0].double() * factors[1].double()).sum(-1)
    assert_close_to_reference(found, expected, exact, "y", 8 * (1 + a.shape[-1]))


# ---- edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("sparse", (40,)),
        ("dense", (33,)),
        ("dense", (3, 8)),
        ("no edges", (4,)),
        ("one target", (2, 70)),
    ],
)
def test_edge_dot(
    name: str, shape: tuple[int, ...], backend: str, device: str, dtype: torch.dtype
) -> None:
    sources, targets, edges = GRAPHS[name]
    _skip_slow(backend, device, edges)
    graph, (source, target) = _graph(name, device)
    _check(
        lambda a, b: F.edge_dot(a, b, graph, backend=backend),
        lambda a, b: (a[target] * b[source]).sum(-1),
        [randn((targets, *shape), dtype, device), randn((sources, *shape), dtype, device)],
        (edges, *shape[:-1]),
        edges,
    )


def test_edge_dot_derivatives(device: str) -> None:
    graph, _ = _graph("dense", device)
    a = randn((7, 2, 3), torch.float64, device).requires_grad_()
    b = randn((9, 2, 3), torch.float64, device).requires_grad_()
    function = lambda a, b: F.edge_dot(a, b, graph)  # noqa: E731
    assert torch.autograd.gradcheck(function, (a, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (a, b), fast_mode=True)


@pytest.mark.parametrize("heads", [(), (4,)])
def test_graph_attention(heads: tuple[int, ...], device: str) -> None:
    """On a dense graph the op is attention."""
    nodes = 12
    grid = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes)).t().to(device)
    graph = F.Graph.from_edges(grid[:, torch.randperm(nodes * nodes)], nodes)
    q, k, v = (randn((nodes, *heads, 8), torch.float32, device) for _ in range(3))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = ((x.unsqueeze(1) if x.dim() == 2 else x).transpose(0, 1) for x in (q, k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1)
        return y if heads else y.squeeze(1)

    dy = randn(q.shape, torch.float32, device)
    found = both_passes(lambda *x: F.graph_attention(*x, graph), [q, k, v], dy)
    torch.testing.assert_close(found, both_passes(attention, [q, k, v], dy))


# ---- graphs -------------------------------------------------------------------------------------


def test_sorted_edges_are_views(device: str) -> None:
    edges = torch.tensor([[2, 0, 1], [0, 1, 1]], dtype=torch.int32, device=device)
    graph = F.Graph.from_edges(edges)
    assert graph.order is None
    assert graph.indices.data_ptr() == edges[0].data_ptr()
    assert graph.offsets.dtype == torch.int32
    assert graph.offsets.tolist() == [0, 1, 3, 3]
    assert repr(graph) == "Graph(num_sources=3, num_targets=3, num_edges=3)"
    csr = F.Graph.from_csr(graph.offsets, graph.indices, 5)
    assert csr.indices is graph.indices
    assert csr.num_sources == 5
    assert csr.degrees.tolist() == [1, 2, 0]
    assert [x.tolist() for x in graph.transpose] == [[0, 1, 2, 3], [1, 1, 0], [1, 2, 0]]


def test_unsorted_edges_keep_their_numbers(device: str) -> None:
    edges = torch.tensor([[1, 0, 2, 0], [1, 0, 1, 0]], device=device)
    graph = F.Graph.from_edges(edges)
    assert graph.order is not None
    assert graph.order.tolist() == [1, 3, 0, 2]
    assert graph.indices.tolist() == [0, 0, 1, 2]
    assert graph.targets.tolist() == [0, 0, 1, 1]
    assert graph.to("cpu").num_edges == 4


def test_segment_offsets(device: str) -> None:
    segments = torch.tensor([0, 0, 3], device=device)
    assert F.segment_offsets(segments).tolist() == [0, 2, 2, 2, 3]
    assert F.segment_offsets(segments, 6).tolist() == [0, 2, 2, 2, 3, 3, 3]
    assert F.segment_offsets(segments[:0]).tolist() == [0]
    with pytest.raises(ValueError, match=r"^segment_offsets: segments fall, expected them sorted$"):
        F.segment_offsets(segments.flip(0), 4)
    with pytest.raises(IndexError, match=r"^segment_offsets: segments holds 3, expected one of 2 "):
        F.segment_offsets(segments, 2)


@pytest.mark.parametrize(
    ("edges", "nodes", "error", "words"),
    [
        ([[0, 3], [0, 1]], 3, IndexError, r"edges\[0\] holds 3, expected one of 3 nodes"),
        ([[0, 1], [0, -1]], None, IndexError, r"edges\[1\] holds -1, expected one of 2 nodes"),
        ([[0, 1], [0, 2]], (2, 2), IndexError, r"edges\[1\] holds 2, expected one of 2 nodes"),
        ([0, 1], None, ValueError, r"edges has shape \(2,\), expected \(2, E\)"),
        ([[0.5], [1]], None, TypeError, "edges is float32, expected int32 or int64"),
        ([[0], [0]], -1, ValueError, "num_nodes is -1, expected at least 0"),
        ([[0], [0]], 1.5, TypeError, "num_nodes is 1.5, expected an int"),
    ],
)
def test_bad_edges(edges: Any, nodes: Any, error: type[Exception], words: str, device: str) -> None:
    with pytest.raises(error, match=f"^Graph.from_edges: {words}"):
        F.Graph.from_edges(torch.tensor(edges, device=device), nodes)


def test_bad_csr(device: str) -> None:
    def offsets(*numbers: int) -> Tensor:
        return torch.tensor(numbers, device=device)

    indices = offsets(0, 1, 1)
    for bad, words in (
        (offsets(1, 3), "offsets begins with 1, expected 0"),
        (offsets(0, 2), r"offsets ends with 2, expected 3 \(the number of edges\)"),
        (offsets(0, 3, 1, 3), "offsets falls from 3 to 1 behind segment 1, expected no segment of"),
        (indices[:0], r"offsets has shape \(0,\), expected one dimension of at least 1"),
        (offsets(0, 3), "indices holds 1, expected one of 1 nodes"),
    ):
        with pytest.raises(ValueError, match=f"^Graph.from_csr: {words}"):
            F.Graph.from_csr(bad, indices)
    with pytest.raises(ValueError, match=r"^Graph.from_csr: num_sources is -1, expected at least"):
        F.Graph.from_csr(offsets(0, 3), indices, -1)
    with pytest.raises(TypeError, match=r"^Graph.from_csr: offsets is float32, expected int32 or"):
        F.Graph.from_csr(offsets(0, 3).float(), indices)


def test_offsets_of_no_graph_are_checked_on_the_cpu() -> None:
    x = torch.randn(3, 4)
    for backend in ("auto", "reference"):
        for numbers, words in (
            (
                [0, 2, 1, 3],
                "offsets falls from 2 to 1 behind segment 1, expected no segment of few",
            ),
            ([1, 3], "offsets begins with 1, expected 0"),
            ([0, 4], r"offsets ends with 4, expected 3 \(the number of edges\)"),
        ):
            for function in (F.segment_reduce, F.segment_softmax):
                op = "gather_reduce" if function is F.segment_reduce else "segment_softmax"
                with pytest.raises(ValueError, match=f"^{op}: {words}"):
                    function(x, torch.tensor(numbers), backend=backend)
        graph = F.Graph(torch.tensor([0, 1]), torch.tensor([7]), None, 3)
        with pytest.raises(
            IndexError, match=r"^gather_reduce: indices holds 7, expected one of 3 "
        ):
            F.gather_reduce(x, graph, backend=backend)


@pytest.mark.cuda
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_index_out_of_range_contributes_nothing(backend: str) -> None:
    indices = torch.tensor([1, -7, 2**40, 2], device="cuda")
    graph = F.Graph(torch.tensor([0, 3, 4], device="cuda"), indices, None, 3)
    x = randn((3, 8), torch.float32, "cuda")
    expected = torch.stack([x[1], x[2]])
    for reduce in ("sum", "max"):
        y = F.gather_reduce(x, graph, reduce=reduce, backend=backend)
        torch.testing.assert_close(y, expected)
    torch.testing.assert_close(F.edge_dot(x[:2], x, graph, backend=backend)[1:3],
                               torch.zeros(2, device="cuda"))  # fmt: skip


@pytest.mark.cuda
def test_products_with_no_rows_at_all() -> None:
    graph = F.Graph(torch.tensor([0, 3], device="cuda"), torch.zeros(3).long().cuda(), None, 0)
    a = randn((1, 8), torch.float32, "cuda")
    assert F.edge_dot(a, a[:0], graph).eq(0).all()


def test_refused(device: str) -> None:
    graph, _ = _graph("sparse", device)
    x = randn((30, 8), torch.float32, device)
    for call, words in (
        (lambda: F.gather_reduce(x[1:], graph), "gather_reduce: x has 29 rows, expected 30 "),
        (lambda: F.gather_reduce(None, graph), "gather_reduce: x is NoneType, expected a Tensor"),
        (lambda: F.gather_reduce(x, graph.offsets), "gather_reduce: graph is Tensor, expected a G"),
        (lambda: F.gather_reduce(x, graph, reduce="min"), "gather_reduce: reduce is 'min', expect"),
        (lambda: F.gather_reduce(x, graph, x[:, 0]), "gather_reduce: weight has 30 rows, expected"),
        (lambda: F.segment_reduce(x, [0, 30]), "segment_reduce: offsets is list, expected a Tens"),
        (lambda: F.edge_dot(x, x, graph), "edge_dot: a has 30 rows, expected 50 "),
        (lambda: F.edge_dot(x, x[:, 1:], graph), r"edge_dot: b has shape \(30, 7\), expected "),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^{words}"):
            call()


def test_compiled(device: str) -> None:
    graph, _ = _graph("sparse", device)
    assert graph.transpose.offsets.numel() == 31  # made before the graph is traced

    def step(x: Tensor, weight: Tensor) -> Tensor:
        alpha = F.segment_softmax(weight, graph)
        return F.gather_reduce(x, graph, alpha) + F.gather_reduce(x, graph, reduce="max")

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    tensors = [randn((30, 8), torch.float32, device), randn((60, 2), torch.float32, device)]
    dy = randn((50, 8), torch.float32, device)
    torch.testing.assert_close(both_passes(compiled, tensors, dy), both_passes(step, tensors, dy))
