# SPDX-License-Identifier: MIT
"""Sharding: four processes compute the results of one, on a mesh of one dimension and of two, where
parts are uneven and some are empty."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

import transformer_kernels.functional as tfk
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing.declared import combinations, passes, without_dropout
from transformer_kernels.testing.processes import device
from transformer_kernels.testing.tolerance import violation

if dist.is_available():
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

WORLD = 4
Places = tuple[Any, ...]


class Meshes(NamedTuple):
    line: DeviceMesh  # (4,)
    square: DeviceMesh  # (2, 2)


@cache
def _meshes() -> Meshes:
    kind = device().type
    line = init_device_mesh(kind, (WORLD,))
    return Meshes(line, init_device_mesh(kind, (2, 2), mesh_dim_names=("rows", "columns")))


def _whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def _agree(found: Tensor, expected: Tensor, words: str, **tolerance: float) -> None:
    torch.testing.assert_close(
        _whole(found), expected, msg=lambda text: f"{words}: {text}", **tolerance
    )


# ---- every op -----------------------------------------------------------------------------------


def _share(x: Any, mesh: DeviceMesh, dims: tuple[int, ...]) -> Any:
    if not isinstance(x, Tensor):
        return x
    places = [Shard(d % x.dim()) if -x.dim() <= d < x.dim() else Replicate() for d in dims]
    return distribute_tensor(x.detach(), mesh, places)


def _every_op() -> None:
    """With few rows, most processes of a line have none, or no columns. Each op is on one of two
    meshes, which are drawn anew in each run."""
    meshes = _meshes()
    for op in DECLARED.values():
        values = without_dropout(op, [*combinations(op, device().type)][-1])
        expected = passes(op, values)
        mesh, dims = ((meshes.line, (0,)), (meshes.square, (0, -1)))[int(torch.randint(2, ()))]
        split = {name: _share(x, mesh, dims) for name, x in values.items()}
        for a, b in zip(passes(op, split), expected, strict=True):
            _agree(a, b, f"{op.name}, {dims}", rtol=1e-4, atol=1e-4)


# ---- losses -------------------------------------------------------------------------------------

ROWS, CLASSES, FEATURES = 6, 11, 8
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 5.0},
}


def _labels() -> Tensor:
    labels = torch.randint(CLASSES, (ROWS,))
    labels[1], labels[2] = -100, CLASSES - 1
    return labels


def _outcome(call: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """The result, and the gradients of what has one, from an incoming gradient that depends on the
    place alone."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
    y = call(*leaves)
    weights = torch.linspace(1, 2, y.numel(), dtype=torch.float64).view(y.shape).to(y.dtype)
    if isinstance(y, DTensor):
        whole = [Replicate() if p.is_partial() else p for p in y.placements]
        weights = distribute_tensor(weights, y.device_mesh, whole)
    return [y, *torch.autograd.grad(y, [x for x in leaves if x.requires_grad], weights)]


def _meets_the_rule(
    call: Callable[..., Tensor], stock: Callable[..., Tensor], tensors: tuple[Tensor, ...],
    mesh: DeviceMesh, places: list[Places], words: str,
) -> list[Any]:  # fmt: skip
    """Compares processes with float64 by the rule of twice PyTorch's error, where terms of size one
    may cancel; returns where results and gradients lie."""
    split = tuple(distribute_tensor(x, mesh, p) for x, p in zip(tensors, places, strict=True))
    ours = _outcome(call, split)
    wide = tuple(x.double() if x.is_floating_point() else x for x in tensors)
    each = zip(ours, _outcome(stock, tensors), _outcome(stock, wide), strict=True)
    for number, (found, theirs, reference) in enumerate(each):
        fault = violation(_whole(found), theirs, reference, magnitude=1.0)
        if fault is not None:
            raise fault.error(f"{words}, {number}")
    return [x.placements for x in ours]


def _stock_loss(x: Tensor, target: Tensor, weight: Tensor | None = None, **options: Any) -> Tensor:
    z_loss, cap = options.pop("z_loss", 0.0), options.pop("softcap", 0.0)
    z = cap * torch.tanh(x / cap) if cap else x
    loss = F.cross_entropy(z, target, weight, **options)
    if not z_loss:
        return loss
    counted = torch.ones(len(x), dtype=x.dtype)
    if not target.is_floating_point():
        counted = (target != -100).to(x.dtype)
        counted = counted if weight is None else counted * weight[target.clamp(min=0)]
    squares = z_loss * counted * z.logsumexp(-1).square()
    reduction = options["reduction"]
    reduced = {"none": squares, "sum": squares.sum(), "mean": squares.sum() / counted.sum()}
    return loss + reduced[reduction]


def _split_logits() -> None:
    meshes = _meshes()
    none, classes, rows = Replicate(), Shard(1), Shard(0)
    layouts = (
        (meshes.line, (classes,), (none,)),
        (meshes.line, (rows,), (none,)),
        (meshes.square, (rows, classes), (none, none)),
        (meshes.square, (classes, classes), (none, none)),
    )
    probabilities = torch.softmax(torch.randn(ROWS, CLASSES), -1)
    kinds = {"labels": _labels(), "probabilities": probabilities}
    of_classes = torch.rand(CLASSES) + 0.5
    for dtype, reduction in (
        (torch.float32, "mean"),
        (torch.float32, "sum"),
        (torch.float32, "none"),
        (torch.bfloat16, "mean"),
    ):
        x = torch.randn(ROWS, CLASSES).to(dtype)
        for kind, target in kinds.items():
            target = target.to(dtype) if target.is_floating_point() else target
            for name, options in OPTIONS.items():
                weight = of_classes.to(dtype) if name == "all" else None
                for mesh, place, whole in layouts:
                    _split_loss(
                        (x, target), weight, mesh, (place, whole if kind == "labels" else place),
                        {**options, "reduction": reduction}, f"{kind}, {name}, {place}",
                    )  # fmt: skip


def _split_loss(
    tensors: tuple[Tensor, Tensor], weight: Tensor | None, mesh: DeviceMesh,
    places: tuple[Places, Places], options: dict[str, Any], words: str,
) -> None:  # fmt: skip
    whole = [Replicate()] * mesh.ndim
    shared = None if weight is None else distribute_tensor(weight, mesh, whole)

    def stock(x: Tensor, target: Tensor) -> Tensor:
        wide = weight if weight is None else weight.to(x.dtype)
        return _stock_loss(x, target, wide, **options)

    lie = _meets_the_rule(
        partial(tfk.cross_entropy, weight=shared, **options), stock, tensors, mesh, list(places),
        f"cross_entropy, {options}, {words}",
    )  # fmt: skip
    assert lie[1] == places[0], words  # logits are not gathered
    if places[0][-1] == Shard(1) or options["reduction"] == "mean":
        assert lie[0][-1] == Replicate(), words


def _split_layer() -> None:
    """The last layer and its loss by classes, in several chunks of rows."""
    meshes = _meshes()
    none, classes = Replicate(), Shard(0)
    target = _labels()
    for dtype, reduction in (
        (torch.float32, "mean"), (torch.float32, "none"), (torch.bfloat16, "sum"),
    ):  # fmt: skip
        tensors = (
            torch.randn(ROWS, FEATURES).to(dtype), torch.randn(CLASSES, FEATURES).to(dtype),
            torch.randn(CLASSES).to(dtype),
        )  # fmt: skip
        for name, options in OPTIONS.items():
            options = {**options, "reduction": reduction}

            def stock(x: Tensor, w: Tensor, b: Tensor, o: Any = options) -> Tensor:
                return _stock_loss(F.linear(x, w, b), target, **o)

            for mesh, of_x, of_weight in (
                (meshes.line, (none,), (classes,)),
                (meshes.square, (Shard(0), none), (none, classes)),
            ):
                shared = distribute_tensor(target, mesh, of_x)

                def call(x: Tensor, w: Tensor, b: Tensor, t: Any = shared, o: Any = options) -> Any:
                    return tfk.linear_cross_entropy(x, w, t, linear_bias=b, chunk_bytes=64, **o)

                words = f"linear_cross_entropy, {dtype}, {name}, {of_x}"
                places = [of_x, of_weight, of_weight]
                lie = _meets_the_rule(call, stock, tensors, mesh, places, words)
                assert lie[2][-1] == lie[3][-1] == classes, words


def _split_statistics() -> None:
    """Means of the entropy and the accuracy count the rows of all processes."""
    meshes = _meshes()
    x, weight = torch.randn(ROWS, FEATURES), torch.randn(CLASSES, FEATURES)
    target = _labels()

    def call(x: Tensor, target: Tensor, weight: Tensor) -> Any:
        return tfk.linear_cross_entropy(
            x, weight, target, return_entropy=True, return_accuracy=True
        )

    rows = [_share(each, meshes.line, (0,)) for each in (x, target)]
    found = call(*rows, _share(weight, meshes.line, (9,)))
    for a, b in zip(found, call(x, target, weight), strict=True):
        _agree(a, b, "statistics")
        assert a.placements == (Replicate(),)


# ---- ways that need more than parts -------------------------------------------------------------


def _rows_of_tables() -> None:
    """Tables of 3 rows leave a process without any."""
    meshes = _meshes()
    none, rows = Replicate(), Shard(0)
    for size, mesh, place in (
        (3, meshes.line, (rows,)), (7, meshes.square, (none, rows)),
        (7, meshes.square, (rows, rows)),
    ):  # fmt: skip
        whole = (none,) * mesh.ndim
        tokens = torch.randint(size, (2, 5))
        tables = (torch.randn(size, FEATURES), torch.randn(5, FEATURES))
        shared = distribute_tensor(tokens, mesh, whole)
        for stock, call, places in (
            (
                lambda w, p, i: F.embedding(i, w, padding_idx=1) + 0 * p,
                lambda w, p, i: tfk.embedding(i, w, padding_idx=1) + 0 * p,
                [place, whole],
            ),
            (
                lambda w, p, i: F.embedding(i, w, padding_idx=1) + p,
                lambda w, p, i: tfk.embedding_add(i, w, None, p, padding_idx=1),
                [place, whole],
            ),
        ):
            lie = _meets_the_rule(
                partial(call, i=shared), partial(stock, i=tokens), tables, mesh, places,
                f"embedding, {size}, {place}",
            )  # fmt: skip
            assert lie[1] == place
        found = tfk.embedding(shared, distribute_tensor(tables[0], mesh, place))
        assert found.placements[-1] == Partial()


def _one_process_adds_the_bias() -> None:
    mesh, none, last = _meshes().line, Replicate(), Shard(1)
    x, hidden = torch.randn(3, FEATURES), torch.randn(16, FEATURES)
    down, bias = torch.randn(5, 16), torch.randn(5)
    for call, stock, tensors, places in (
        (
            partial(tfk.linear, backend=device().type), F.linear,
            (x, torch.randn(5, FEATURES), bias),
            [last, last, none],
        ),
        (
            lambda x, w, d, b: tfk.mlp(x, w, None, d, b, "silu"),
            lambda x, w, d, b: F.linear(F.silu(F.linear(x, w)), d, b),
            (x, hidden, down, bias), [none, Shard(0), last, none],
        ),
        (
            lambda x, w, u, d, b: tfk.gated_mlp(x, w, u, d, down_bias=b),
            lambda x, w, u, d, b: F.linear(F.silu(F.linear(x, w)) * F.linear(x, u), d, b),
            (x, hidden, torch.randn(16, FEATURES), down, bias),
            [none, Shard(0), Shard(0), last, none],
        ),
    ):  # fmt: skip
        lie = _meets_the_rule(call, stock, tensors, mesh, [(p,) for p in places], f"{places}")
        assert lie[0] == (Partial(),)


def _experts_of_processes() -> None:
    """Three experts on four processes: one has none."""
    meshes = _meshes()
    experts, tokens = 3, 7
    weights, indices = torch.rand(tokens, 2), torch.randint(experts, (tokens, 2))
    tensors = (torch.randn(tokens, 4), torch.randn(experts, 6, 4), torch.randn(experts, 4, 6))

    def call(x: Tensor, up: Tensor, down: Tensor, w: Tensor, i: Tensor) -> Any:
        return tfk.moe_experts(x, tfk.moe_dispatch(i, experts), w, up, down, "silu")

    def stock(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        y = torch.stack(
            [F.linear(F.silu(F.linear(x, u)), d) for u, d in zip(up, down, strict=True)]
        )
        chosen = y[indices, torch.arange(tokens).unsqueeze(1)]  # (T, 2, 4)
        return (weights.to(x.dtype).unsqueeze(-1) * chosen).sum(1)

    routing = {"w": _share(weights, meshes.line, (9,)), "i": _share(indices, meshes.line, (0,))}
    places: list[Places] = [(Replicate(),), (Shard(0),), (Shard(0),)]
    lie = _meets_the_rule(partial(call, **routing), stock, tensors, meshes.line, places, "experts")
    assert lie == [(Partial(),), (Replicate(),), (Shard(0),), (Shard(0),)]


def _queries_of_processes() -> None:
    meshes = _meshes()
    q, k, v = torch.randn(3, 2, 5, 2, 8)
    split = distribute_tensor(q, meshes.line, [Shard(1)])
    whole = [distribute_tensor(x, meshes.line, [Replicate()]) for x in (k, v)]
    found = tfk.attention(split, *whole)
    assert found.placements == (Shard(1),)
    _agree(found, tfk.attention(q, k, v), "attention by queries")
    assert tfk.attention(split, *whole, causal=True).placements == (Replicate(),)


def _positions_count_on() -> None:
    """Seven tokens on four processes: the last one has one."""
    meshes = _meshes()
    q, (cos, sin) = torch.randn(2, 7, 3, 8), tfk.rope_tables(12, 8)
    split = distribute_tensor(q, meshes.line, [Shard(1)])
    tables = [distribute_tensor(x, meshes.line, [Replicate()]) for x in (cos, sin)]
    for call in (
        lambda q, cos, sin: tfk.rope(q, None, cos, sin, offsets=5),
        lambda q, cos, sin: tfk.qk_norm(q, q, cos=cos, sin=sin, offsets=2)[1],
    ):
        found = call(split, *tables)
        assert found.placements == (Shard(1),)
        _agree(found, call(q, cos, sin), "positions")


# ---- random numbers -----------------------------------------------------------------------------


def _masks_of_processes() -> None:
    """Parts drop the elements that the whole drops; nobody has to give the seed."""
    meshes = _meshes()
    shape, seed = (3, 5, 12), torch.randint(2**40, (2,))
    tensors = (*torch.randn(2, *shape).double(), torch.randn(12).double())
    for call in (
        lambda x, r, b: tfk.dropout(x, 0.3, seed=seed) + r + b,
        lambda x, r, b: tfk.bias_dropout_add(x, b, r, 0.3, seed=seed),
        lambda x, r, b: tfk.bias_dropout_add_layer_norm(x, b, r, None, None, 0.3, seed=seed)[0],
        lambda x, r, b: tfk.bias_dropout_add_rms_norm(x, b, r, None, 0.3, seed=seed)[1],
    ):
        for mesh, dims in ((meshes.line, (0,)), (meshes.line, (1,)), (meshes.square, (1, -1))):
            whole = (9,) * mesh.ndim
            split = [_share(x, mesh, whole if x.dim() == 1 else dims) for x in tensors]
            found = _outcome(call, tuple(split))
            for a, b in zip(found, _outcome(call, tensors), strict=True):
                _agree(a, b, f"{dims}")
            assert found[1].placements == split[0].placements
    whole = _share(tensors[0], meshes.square, (9, 9))
    torch.manual_seed(dist.get_rank())
    drawn = tfk.dropout(whole, 0.5).to_local()
    all_drawn = [torch.empty_like(drawn) for _ in range(WORLD)]
    dist.all_gather(all_drawn, drawn)
    assert all(torch.equal(each, drawn) for each in all_drawn)


# ---- refusals -----------------------------------------------------------------------------------


def _refusals() -> None:
    line, square = _meshes()
    x, target = torch.randn(4, 8), torch.tensor([1, 0, 9, 3])
    split, labels = _share(x, line, (1,)), _share(target, line, (9,))
    table, there = _share(torch.randn(8, 4), line, (0,)), _share(x, square, (0, 1))
    if target.is_cpu:  # a GPU is not waited for
        with pytest.raises(ValueError, match="target is 9 in row 2, expected one of"):
            tfk.cross_entropy(split, labels)
        with pytest.raises(IndexError, match="embedding: indices holds 9, expected a row of we"):
            tfk.embedding(labels, table)
    with pytest.raises(ValueError, match="rms_norm: weight is on DeviceMesh"):
        tfk.rms_norm(there, (8,), _share(torch.ones(8), line, (9,)))
    with pytest.raises(TypeError, match="cross_entropy: target is a Tensor, expected a DTensor"):
        tfk.cross_entropy(split, target)
    split.requires_grad_()
    loss = tfk.cross_entropy(split, _share(target.clamp(max=7), line, (9,)))
    with pytest.raises(RuntimeError, match="cross_entropy: classes are split between devices"):
        torch.autograd.grad(loss, split, create_graph=True)


CASES = [
    _every_op, _split_logits, _split_layer, _split_statistics, _rows_of_tables,
    _one_process_adds_the_bias, _experts_of_processes, _queries_of_processes,
    _positions_count_on, _masks_of_processes, _refusals,
]  # fmt: skip


@pytest.mark.distributed
def test_ranks_together(together: Callable[..., None]) -> None:
    together(CASES)
