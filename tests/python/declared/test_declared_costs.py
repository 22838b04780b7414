# SPDX-License-Identifier: MIT
"""Every declared op says which function it is, what it stands in for, what it costs and how it may
be split; and what it says is true."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels
from transformer_kernels._library import NAMESPACE
from transformer_kernels.ops._declare import Op, Way
from transformer_kernels.ops._declare_arguments import as_tuple
from transformer_kernels.ops._declare_raw import RAW
from transformer_kernels.ops._parallel import ONCE, SUMMED, Joint, elements, rows
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.ops._work import KINDS, MEMORY, PRODUCT
from transformer_kernels.testing.declared import Values, combinations, without_dropout

OPS = list(DECLARED.values())
NO_OPS = {
    "cpu_instruction_sets", "fpga_counters",  # they say something of the machine
    "adamw_", "lion_",  # they change lists of tensors, for the classes of tfk.optim
    "declare_probe",  # test_declare.py declares it, perhaps in this process
}  # fmt: skip


def _cases() -> Iterator[Any]:
    for op in OPS:
        for number, values in enumerate(combinations(op)):
            yield pytest.param(op, without_dropout(op, values), id=f"{op.name}-{number}")


CASES = list(_cases())


def _double(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_its_function_is_public_and_takes_a_backend(op: Op) -> None:
    found: Any = transformer_kernels
    for part in op.function.split("."):
        found = getattr(found, part)
    assert op.function.startswith("functional.")
    assert "backend" in inspect.signature(found).parameters
    assert op.text


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_its_kind_is_known_and_products_count_operations(op: Op) -> None:
    assert op.kind in KINDS
    assert (op.flops is None) == (op.kind == MEMORY)


@pytest.mark.parametrize(("op", "values"), CASES)
def test_stock_computes_the_same(op: Op, values: Values) -> None:
    """It may leave out last results that PyTorch does not give."""
    values = {name: _double(x) for name, x in values.items()}
    expected = as_tuple(op.formula(*values.values()))
    found = as_tuple(op.stock(*values.values()))
    for y, exact in zip(found, expected, strict=len(found) == len(expected)):
        assert y.dtype is exact.dtype
        torch.testing.assert_close(y, exact, equal_nan=True)


def test_every_raw_op_is_declared() -> None:
    """Raw ops in C++ and in Python are declared, except those that check the arguments of others
    and those of decode.StepPlan; a node of exported graphs has its op's own name."""
    names = torch._C._dispatch_get_all_op_names()
    ours = {name.partition("::")[2] for name in names if name.startswith(f"{NAMESPACE}::")}
    ours = {n for n in ours if not n.endswith("_check") and not n.startswith("decode_")}
    of_graphs = {name for name in ours if name in DECLARED or name.endswith(".functional")}
    assert ours - of_graphs - NO_OPS == {*RAW}


def _given(op: Op, values: Values) -> Values:
    """The tensors of both passes by name."""
    results = as_tuple(op.raw.forward(*values.values()))
    given = {**values, **dict(zip((*op.returned, *op.saved), results, strict=True))}
    given |= {f"d{name}": given[name] for name in op.returned}
    return given | {f"d{name}": x for name, x in values.items() if isinstance(x, Tensor)}


@pytest.mark.parametrize(("op", "values"), CASES)
def test_work_counts_what_a_call_has(op: Op, values: Values) -> None:
    given = _given(op, values)
    forward, backward = (op.work(pass_, given) for pass_ in ("forward", "backward"))
    results = sum(given[name].nbytes for name in op.returned if given[name].dim() > 0)
    assert forward.bytes >= results
    assert backward.bytes >= sum(given[f"d{name}"].nbytes for name in op.returned[:1])
    if op.kind == PRODUCT:
        assert 0 < (forward.flops or 0) <= (backward.flops or 0)
    less = {name: x for name, x in given.items() if name != "bias"}
    assert op.work("forward", less).bytes <= forward.bytes


def test_norms_read_no_bias_backward() -> None:
    x, row, col = torch.randn(4, 8), torch.randn(4), torch.randn(8)
    given = {"x": x, "dy": x, "dx": x, "mean": row, "rstd": row, "weight": col, "bias": col}
    given |= {"dweight": col, "dbias": col, "y": x}
    work = DECLARED["layer_norm"].work
    assert work("forward", given).bytes == (32 + 32 + 8 + 8) * 4
    assert work("backward", given).bytes == (3 * 32 + 2 * 4 + 3 * 8) * 4


# ---- splits -------------------------------------------------------------------------------------


def _dim(way: Way, name: str, x: Tensor) -> int | None:
    dim = x.dim() - way.get(name, x.dim() + 1)
    return dim if 0 <= dim < x.dim() and x.shape[dim] != 1 else None


def _parts(way: Way, values: Values, at: dict[str, int]) -> list[Values]:
    """The arguments of two devices: one third and the rest, where sizes allow unequal parts."""

    def part(name: str, x: Any, second: bool) -> Any:
        if not isinstance(x, Tensor):
            return x // 2 if name in way and x is not None else x
        if way.get(name) == ONCE and second:
            return torch.zeros_like(x)
        if (dim := _dim(way, name, x)) is None:
            return x
        cut = at[name]
        return x.narrow(dim, cut if second else 0, x.shape[dim] - cut if second else cut)

    return [{name: part(name, x, second) for name, x in values.items()} for second in (False, True)]


def _cuts(way: Way, values: Values, results: Values) -> dict[str, int] | None:
    """Where tensors are cut: as the mechanism does, evenly where sizes differ, or a number is
    divided."""
    numbers = [x for n, x in values.items() if n in way and isinstance(x, int)]
    sizes = {
        name: x.shape[dim]
        for name, x in (values | results).items()
        if isinstance(x, Tensor) and (dim := _dim(way, name, x)) is not None
    }
    whole = [n for n in results if way.get(n) != SUMMED and n not in sizes and results[n].numel()]
    alike = len({*sizes.values()}) <= 1 and not numbers
    even = all(size % 2 == 0 for size in (*sizes.values(), *numbers))
    if whole or not sizes or not (alike or even):
        return None
    return {name: max(size // 3, 1) if alike else size // 2 for name, size in sizes.items()}


def _gradients(op: Op, values: Values, seeds: dict[str, Tensor]) -> Values:
    leaves = {
        name: x.detach().requires_grad_()
        for name, x in values.items()
        if name in op.differentiable and isinstance(x, Tensor) and x.is_floating_point()
    }
    results = dict(
        zip(op.returned, as_tuple(op.formula(*{**values, **leaves}.values())), strict=True)
    )
    wanted = {n: r for n, r in results.items() if r.requires_grad}
    found = torch.autograd.grad(
        [*wanted.values()], [*leaves.values()], [seeds[n] for n in wanted], materialize_grads=True
    )
    return {n: r.detach() for n, r in results.items()} | {
        f"d{n}": g for n, g in zip(leaves, found, strict=True)
    }


@pytest.mark.parametrize(("op", "values"), CASES)
def test_parts_of_every_way_are_the_whole(op: Op, values: Values) -> None:
    values = {name: _double(x) for name, x in values.items()}
    whole = dict(zip(op.returned, as_tuple(op.formula(*values.values())), strict=True))
    seeds = {
        n: torch.linspace(-1, 2, r.numel(), dtype=r.dtype).view(r.shape) for n, r in whole.items()
    }
    expected = _gradients(op, values, seeds)
    for way in op.parallel(op, values):
        cuts = _cuts(way, values, whole)
        if cuts is None or isinstance(way, Joint):  # test_sharding.py has processes that talk
            continue
        seeds_of = _parts(way, seeds, cuts)
        found = [
            _gradients(op, part, own)
            for part, own in zip(_parts(way, values, cuts), seeds_of, strict=True)
        ]
        for name, exact in expected.items():
            first, second = (part[name] for part in found)
            of = name if name in whole else name.removeprefix("d")
            dim = _dim(way, of, whole[of] if of in whole else values[of])
            if dim is not None:
                joined = torch.cat([first, second], dim)
            elif way.get(of) == ONCE or (name in whole and way.get(name) != SUMMED):
                joined = first
            else:
                joined = first + second
            torch.testing.assert_close(joined, exact, msg=lambda m, w=way, n=name: f"{w} {n}: {m}")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_it_may_be_split(op: Op) -> None:
    assert any(
        _cuts(way, values, _results(op, values)) is not None
        for values in (without_dropout(op, v) for v in combinations(op))
        for way in op.parallel(op, values)
    )


def _results(op: Op, values: Values) -> Values:
    return dict(zip(op.returned, as_tuple(op.formula(*values.values())), strict=True))


def test_rows_and_elements() -> None:
    norm, gelu = DECLARED["layer_norm"], DECLARED["gelu"]
    x, w = torch.randn(2, 3, 4), torch.randn(4)
    given = {"x": x, "weight": w, "bias": w, "eps": 1e-5, "zero_centered_weight": False}
    assert [way["x"] for way in rows(norm, given)] == [2, 3]
    assert [way["x"] for way in rows(norm, given, 2)] == [3]
    assert elements(gelu, {"x": x, "bias": w})[0] == {"x": 1, "bias": 1, "y": 1}
