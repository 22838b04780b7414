# SPDX-License-Identifier: MIT
"""MLPs: numbers at each level, saved tensors, frozen weights, dropout and residuals."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as in_torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import transformer_kernels as tfk
from transformer_kernels.ops.linear import _mlp
from transformer_kernels.testing.inputs import LAYOUTS, poisoned, randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional
LEVELS = (0, 1, 2)
KINDS = ("plain", "two", "pair")  # an activation; gate and up of two weights, or of one
K, HIDDEN, N = 40, 144, 24

each_level = pytest.mark.parametrize("level", LEVELS)
each_kind = pytest.mark.parametrize("kind", KINDS)


def _of_small_parts(*_: object) -> int:
    return 64


@pytest.fixture(params=[False, True], ids=["whole", "parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes the hidden features at once, or in parts, as for large problems."""
    if request.param:
        monkeypatch.setattr(_mlp, "features_of_part", _of_small_parts)


def _leaves(
    kind: str, dtype: torch.dtype, rows: tuple[int, ...] = (33,), columns: int = N
) -> dict[str, Tensor]:
    hidden = HIDDEN if kind == "plain" else 2 * HIDDEN
    sizes = {
        "input": (*rows, K), "weight": (hidden, K), "bias": (hidden,),
        "down_weight": (columns, HIDDEN), "down_bias": (columns,),
    }  # fmt: skip
    scales = {"weight": K**-0.5, "down_weight": HIDDEN**-0.5}
    return {
        name: (randn(size, torch.float64) * scales.get(name, 1)).to(dtype)
        for name, size in sizes.items()
    }


def _ours(kind: str, leaves: dict[str, Tensor], **options: Any) -> Tensor:
    if kind == "plain":
        return F.mlp(**leaves, **options)
    if kind == "pair":
        return F.gated_mlp(**leaves, up_weight=None, **options)
    (gate, up), (bias, up_bias) = leaves["weight"].chunk(2), leaves["bias"].chunk(2)
    two = leaves | {"weight": gate, "up_weight": up, "bias": bias, "up_bias": up_bias}
    return F.gated_mlp(**two, **options)


def _formula(kind: str, leaves: dict[str, Tensor]) -> Tensor:
    z = in_torch.linear(leaves["input"], leaves["weight"], leaves["bias"])
    h = (
        in_torch.gelu(z)
        if kind == "plain"
        else in_torch.silu(z.chunk(2, -1)[0]) * z.chunk(2, -1)[1]
    )
    return in_torch.linear(h, leaves["down_weight"], leaves["down_bias"])


def _run(
    function: Callable[[dict[str, Tensor]], Tensor], leaves: dict[str, Tensor], dy: Tensor
) -> dict[str, Tensor]:
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
    y = function(leaves)
    gradients = torch.autograd.grad(y, list(leaves.values()), dy.to(y.dtype))
    return {"y": y.detach(), **{f"d{n}": g for n, g in zip(leaves, gradients, strict=True)}}


def _check(kind: str, leaves: dict[str, Tensor], dy: Tensor, **options: Any) -> None:
    with poisoned():
        found = _run(partial(_ours, kind, **options), leaves, dy)
    theirs = _run(partial(_formula, kind), leaves, dy)
    doubles = {name: leaf.double() for name, leaf in leaves.items()}
    exact = _run(partial(_formula, kind), doubles, dy.double())
    for name, value in found.items():
        assert value.dtype == dy.dtype
        # In parts, gradients of the input are rounded to 16 bits after each.
        is_summed = name == "dinput" and _mlp.features_of_part is _of_small_parts
        magnitude = HIDDEN**0.5 if dy.dtype.itemsize > 2 else 16.0 if is_summed else 1.0
        assert_close_to_reference(value, theirs[name], exact[name], name, magnitude=magnitude)


# ---- numbers ------------------------------------------------------------------------------------


@each_level
@each_kind
@pytest.mark.parametrize("backend", ["auto", "cpu"])
@pytest.mark.usefixtures("parts")
def test_both_passes(kind: str, level: int, backend: str, dtype: torch.dtype) -> None:
    leaves, dy = _leaves(kind, dtype), randn((33, N), dtype)
    _check(kind, leaves, dy, recompute=level, backend=backend)


@each_kind
def test_layouts(kind: str) -> None:
    for layout in LAYOUTS.values():
        leaves, dy = _leaves(kind, torch.float64), layout(randn((33, N), torch.float64))
        leaves |= {n: layout(leaves[n]) for n in ("input", "weight", "down_weight")}
        for level in LEVELS:
            _check(kind, leaves, dy, recompute=level)


@each_kind
@pytest.mark.parametrize("rows", [(), (0,), (2, 3), (1,) * 9])
def test_leading_dimensions(kind: str, rows: tuple[int, ...]) -> None:
    leaves, dy = _leaves(kind, torch.float64, rows), randn((*rows, N), torch.float64)
    for level in LEVELS:
        _check(kind, leaves, dy, recompute=level)


@each_level
@pytest.mark.parametrize("sizes", [(0, 6, 3), (5, 0, 3), (5, 6, 0)], ids=str)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_of_nothing(sizes: tuple[int, int, int], level: int) -> None:
    terms, hidden, columns = sizes
    x, weight, down = (
        torch.ones(size, requires_grad=True)
        for size in ((4, terms), (hidden, terms), (columns, hidden))
    )
    y = F.mlp(x, weight, None, down, recompute=level)
    assert torch.equal(y, torch.zeros(4, columns))
    for gradient in torch.autograd.grad(y.sum(), (x, weight, down)):
        assert not gradient.any()


@each_level
@each_kind
@pytest.mark.usefixtures("parts")
def test_gradients_of_gradients(kind: str, level: int) -> None:
    names, values = zip(*_leaves(kind, torch.float64, (2,)).items(), strict=True)

    def call(*tensors: Tensor) -> Tensor:
        return _ours(kind, dict(zip(names, tensors, strict=True)), recompute=level)

    leaves = [value.requires_grad_() for value in values]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


@pytest.mark.parametrize("gated", [False, True])
def test_a_layer_and_its_activation_alone(gated: bool) -> None:
    """Compares level 2 with the levels that save the product."""
    leaves = _leaves("pair" if gated else "plain", torch.float64)
    leaves = {name: leaves[name] for name in ("input", "weight", "bias")}
    function = F.gated_linear if gated else F.linear_act
    dy = randn((33, HIDDEN), torch.float64)
    first, second = (
        _run(lambda given, level=level: function(**given, recompute=level), leaves, dy)
        for level in (1, 2)
    )
    for name, value in first.items():
        torch.testing.assert_close(second[name], value)


@pytest.mark.cuda
@each_level
@each_kind
@pytest.mark.usefixtures("parts")
def test_on_cuda(kind: str, level: int, dtype: torch.dtype) -> None:
    with torch.device("cuda"):
        leaves, dy = _leaves(kind, dtype), randn((33, N), dtype)
        _check(kind, leaves, dy, recompute=level)


@pytest.mark.cuda
@each_level
def test_a_cuda_graph_replays_both_passes(level: int) -> None:
    """Nothing in either pass waits for the device."""
    with torch.device("cuda"):
        leaves, dy = _leaves("pair", torch.bfloat16), randn((33, N), torch.bfloat16)
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}

    def step() -> tuple[Tensor, ...]:
        y = _ours("pair", leaves, recompute=level)
        return torch.autograd.grad(y, list(leaves.values()), dy)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_same_bits_each_time() -> None:
    leaves, dy = _leaves("plain", torch.float32), randn((33, N), torch.float32)
    first, second = (_run(partial(_ours, "plain", recompute=2), leaves, dy) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


# ---- what is kept -------------------------------------------------------------------------------


def _kept(call: Callable[[], Tensor], parameters: list[Tensor]) -> int:
    """Bytes that a call saves for its backward pass, besides parameters."""
    storages: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = call()
    assert y.requires_grad
    owned = {p.untyped_storage().data_ptr() for p in parameters}
    return sum(size for pointer, size in storages.items() if pointer not in owned)


def _documented() -> dict[tuple[int, str], str]:
    """The documented table of levels: elements that each op saves per row."""
    text = (Path(__file__).parents[3] / "docs/ops/linear.md").read_text()
    table = re.search(r"^\| `recompute` \|.*?\n\n", text, re.M | re.S)
    assert table is not None
    head, _, *lines = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in table[0].strip().splitlines()
    ]
    cells = ((line[0], *pair) for line in lines for pair in zip(head[1:], line[1:], strict=True))
    return {(int(level), op): cell for level, op, cell in cells}


@each_level
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_kept(level: int, of: torch.dtype) -> None:
    documented = _documented()
    plain, pair = _leaves("plain", of), _leaves("pair", of)
    for leaf in (*plain.values(), *pair.values()):
        leaf.requires_grad_()

    def first(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: leaves[name] for name in ("input", "weight", "bias")}

    calls: dict[str, Callable[[], Tensor]] = {
        "mlp": lambda: _ours("plain", plain, recompute=level),
        "gated_mlp": lambda: _ours("pair", pair, recompute=level),
        "linear_act": lambda: F.linear_act(**first(plain), recompute=level),
        "gated_linear": lambda: F.gated_linear(**first(pair), recompute=level),
    }
    parameters = [v for leaves in (plain, pair) for n, v in leaves.items() if n != "input"]
    for name, call in calls.items():
        elements = eval(documented[level, name], {"K": K, "F": HIDDEN})
        assert _kept(call, parameters) == 33 * elements * of.itemsize, name


def test_what_two_weights_keep() -> None:
    """Two weights save as much as one that packs both."""
    leaves = {n: leaf.requires_grad_() for n, leaf in _leaves("two", torch.float32).items()}
    parameters = [leaf for name, leaf in leaves.items() if name != "input"]
    for level, elements in zip(LEVELS, (K + 3 * HIDDEN, K + 2 * HIDDEN, K), strict=True):
        assert (
            _kept(lambda r=level: _ours("two", leaves, recompute=r), parameters) == 132 * elements
        )


class _Widest(TorchDispatchMode):
    """Records the largest number of elements of an op's result with 33 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = op(*args, **(kwargs or {}))
        for t in found if isinstance(found, tuple) else (found,):
            if not op.is_view and t.dim() == 2 and t.shape[0] == 33:
                self.elements = max(self.elements, t.numel())
        return found


@each_level
@each_kind
def test_no_temporary_is_as_large_as_the_hidden_layer(
    kind: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mlp, "features_of_part", _of_small_parts)
    leaves = {n: leaf.requires_grad_() for n, leaf in _leaves(kind, torch.float32).items()}
    y = _ours(kind, leaves, recompute=level)
    with _Widest() as widest:
        y.backward(torch.ones_like(y))
    assert widest.elements == 33 * 64  # of 144 features: parts are multiples of 64


def test_dropout_and_residual_keep_nothing() -> None:
    leaves = {n: leaf.requires_grad_() for n, leaf in _leaves("plain", torch.float32).items()}
    parameters = [leaf for name, leaf in leaves.items() if name != "input"]
    residual, seed = torch.ones(33, N, requires_grad=True), torch.tensor([7, 3])
    behind = {"residual": residual, "dropout_p": 0.5, "seed": seed}
    kept = _kept(lambda: _ours("plain", leaves, recompute=2, **behind), [*parameters, seed])
    assert kept == 33 * K * 4


# ---- behind the second product ------------------------------------------------------------------


@each_kind
def test_dropout_and_a_residual(kind: str, dtype: torch.dtype) -> None:
    """Dropout drops as bias_dropout_add does, forward and backward."""
    leaves = _leaves(kind, dtype) | {"residual": randn((33, N), dtype)}
    seed, dy = torch.tensor([7, 3]), randn((33, N), dtype)

    def ours(given: dict[str, Tensor]) -> Tensor:
        return _ours(kind, given, dropout_p=0.25, seed=seed)

    def parts(given: dict[str, Tensor]) -> Tensor:
        layers = {n: t for n, t in given.items() if n != "residual"}
        bias = layers["down_bias"]
        y = _ours(kind, layers | {"down_bias": None})  # type: ignore[dict-item]
        return F.bias_dropout_add(y, bias, given["residual"], 0.25, seed=seed)

    first, second = _run(ours, leaves, dy), _run(parts, leaves, dy)
    assert all(torch.equal(first[name], second[name]) for name in first)
    dropped = F.dropout(torch.ones(33, N), 0.25, seed=seed) == 0
    y = _ours(kind, leaves, dropout_p=0.25, seed=seed)
    assert torch.equal(y[dropped], leaves["residual"][dropped])


def test_dropout_alone() -> None:
    leaves, seed = _leaves("plain", torch.float32), torch.tensor([7, 3])
    y = _ours("plain", leaves)
    dropped = _ours("plain", leaves, dropout_p=0.25, seed=seed)
    assert torch.equal(dropped, F.dropout(y, 0.25, seed=seed))
    assert torch.equal(_ours("plain", leaves, dropout_p=0.25, training=False), y)
    torch.manual_seed(1)
    first = _ours("plain", leaves, dropout_p=0.25)
    torch.manual_seed(1)
    assert torch.equal(_ours("plain", leaves, dropout_p=0.25), first)


# ---- training as users do it --------------------------------------------------------------------


def _products(frozen: set[str], level: int) -> float:
    """The number of products in the backward pass with 33 rows, K terms and HIDDEN columns."""
    leaves = _leaves("plain", torch.float32, columns=K)
    y = _ours("plain", {n: t.requires_grad_(n not in frozen) for n, t in leaves.items()},
              recompute=level)  # fmt: skip
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    return counter.get_total_flops() / (2 * 33 * K * HIDDEN)


@pytest.mark.parametrize(
    ("frozen", "products"),
    [
        (set(), 4),
        ({"weight"}, 3),
        ({"weight", "down_weight"}, 2),
        ({"input", "weight", "bias"}, 1),
        ({"input", "weight", "bias", "down_weight"}, 0),
    ],
)
@pytest.mark.usefixtures("parts")
def test_what_is_frozen_costs_nothing(frozen: set[str], products: int) -> None:
    """There are four products: dh, dx and a gradient of each weight; level 2 adds a fifth."""
    assert _products(frozen, 1) == products
    assert _products(frozen, 2) == products + (products > 0)


@each_kind
@pytest.mark.parametrize("wanted", ["input", "weight", "bias", "down_weight", "down_bias"])
def test_one_gradient_alone(kind: str, wanted: str) -> None:
    leaves, dy = _leaves(kind, torch.float32), randn((33, N), torch.float32)
    for level in LEVELS:
        every = _run(partial(_ours, kind, recompute=level), leaves, dy)
        some = {n: t.detach().requires_grad_(n == wanted) for n, t in leaves.items()}
        (found,) = torch.autograd.grad(_ours(kind, some, recompute=level), some[wanted], dy)
        torch.testing.assert_close(found, every[f"d{wanted}"])


def test_below_a_frozen_weight_the_activation_is_not_kept() -> None:
    leaves = {n: leaf.requires_grad_() for n, leaf in _leaves("plain", torch.float32).items()}
    leaves["down_weight"].requires_grad_(False)
    parameters = [leaf for name, leaf in leaves.items() if name != "input"]
    assert _kept(lambda: _ours("plain", leaves, recompute=0), parameters) == 132 * (K + HIDDEN)


class _Adapter(torch.nn.Module):
    """LoRA: a product of two thin matrices beside a frozen layer."""

    def __init__(self, base: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = torch.nn.Parameter(torch.randn(rank, base.in_features))
        self.up = torch.nn.Parameter(torch.randn(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.down), self.up) + self.base(x)


def test_adapters_beside_frozen_layers() -> None:
    """A layer that another module replaced is called as a module."""
    mlp, gated = tfk.nn.MLP(K, HIDDEN), tfk.nn.GatedMLP(K, HIDDEN)
    mlp.requires_grad_(False)
    mlp.fc2 = _Adapter(mlp.fc2, 4)
    gated.requires_grad_(False)
    gated.gate_proj = _Adapter(gated.gate_proj, 4)
    x, residual = randn((33, K), torch.float32), randn((33, K), torch.float32)
    h = in_torch.gelu(in_torch.linear(x, mlp.fc1.weight, mlp.fc1.bias))
    torch.testing.assert_close(mlp(x, residual), mlp.fc2(h) + residual)
    g, u, d = gated.gate_proj, gated.up_proj, gated.down_proj
    expected = (in_torch.silu(g(x)) * (x @ u.weight.t())) @ d.weight.t()
    torch.testing.assert_close(gated(x), expected)
    (mlp(x) + gated(x)).sum().backward()
    for model in (mlp, gated):
        for name, parameter in model.named_parameters():
            assert (parameter.grad is not None) == (name.endswith((".down", ".up"))), name


@each_kind
@pytest.mark.parametrize("residual", [None, torch.float32, torch.bfloat16])
def test_autocast_with_float32_parameters(kind: str, residual: torch.dtype | None) -> None:
    leaves = {n: t.requires_grad_() for n, t in _leaves(kind, torch.float32).items()}
    behind = {} if residual is None else {"residual": torch.ones(33, N, dtype=residual)}
    for level in LEVELS:
        with torch.autocast("cpu", torch.bfloat16):
            y = _ours(kind, leaves, recompute=level, **behind)
            theirs = _formula(kind, leaves)
        assert y.dtype is (residual or torch.bfloat16)
        dy = torch.ones(33, N)
        gradients = torch.autograd.grad(y, list(leaves.values()), dy.to(y.dtype))
        expected = torch.autograd.grad(theirs, list(leaves.values()), dy.to(theirs.dtype))
        for a, b in zip(gradients, expected, strict=True):
            assert a.dtype is torch.float32
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.05 * float(b.abs().max()))


def test_gradients_accumulate_in_the_parameters() -> None:
    """Two backward passes under autocast add up in one float32 ``grad``."""
    leaves = {n: t.requires_grad_() for n, t in _leaves("plain", torch.float32).items()}
    weight, once = leaves["weight"], None
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            y = _ours("plain", leaves)
        y.float().sum().backward()
        assert weight.grad is not None
        assert weight.grad.dtype is torch.float32
        once = weight.grad.clone() if once is None else once
    assert once is not None
    torch.testing.assert_close(weight.grad, 2 * once)


# ---- graphs and transforms ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "level", "dynamic", "kept"),
    [
        ("plain", 0, False, K + 2 * HIDDEN),
        ("pair", 1, True, K + 2 * HIDDEN),
        ("two", 2, False, K),
    ],
)
def test_one_graph(kind: str, level: int, dynamic: bool, kept: int) -> None:
    """There is one graph, whose backward pass reads what the level saves."""
    torch._dynamo.reset()

    def call(leaves: dict[str, Tensor]) -> Tensor:
        return _ours(kind, leaves, recompute=level)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    leaves, dy = _leaves(kind, torch.float32), randn((33, N), torch.float32)
    eager = _run(call, leaves, dy)
    for name, value in _run(compiled, leaves, dy).items():
        torch.testing.assert_close(value, eager[name])
    leaves = {n: t.requires_grad_() for n, t in leaves.items()}
    parameters = [t for n, t in leaves.items() if n != "input"]
    assert _kept(lambda: compiled(leaves), parameters) == 132 * kept


def test_functional_transforms() -> None:
    leaves = _leaves("pair", torch.float64)
    names = list(leaves)

    def loss(*tensors: Tensor) -> Tensor:
        return _ours("pair", dict(zip(names, tensors, strict=True)), recompute=2).square().sum()

    found = torch.func.grad(loss, argnums=1)(*leaves.values())
    weight = leaves["weight"].requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(loss(*leaves.values()), weight)[0])
    rows = torch.func.vmap(loss, (0, None, None, None, None))(*leaves.values())
    torch.testing.assert_close(rows.sum(), loss(*leaves.values()))


# ---- modules and what is refused ----------------------------------------------------------------


@each_level
def test_modules(level: int) -> None:
    x, residual = randn((2, 9, K), torch.float32), randn((2, 9, K), torch.float32)
    for kind in (tfk.nn.MLP, tfk.nn.GatedMLP):
        plain = kind(K, HIDDEN, bias=True)
        module = kind(K, HIDDEN, bias=True, dropout=0.25, recompute=level)
        module.load_state_dict(plain.state_dict())
        torch.testing.assert_close(module.eval()(x, residual), plain(x) + residual)
        module.train()
        torch.manual_seed(1)
        first = module(x, residual)
        torch.manual_seed(1)
        next(iter(module.children())).register_forward_hook(lambda *_: None)
        torch.testing.assert_close(module(x, residual), first)  # layer by layer
        first.sum().backward()
        assert f"dropout=0.25, recompute={level}" in repr(module)


@pytest.mark.parametrize("kind", [tfk.nn.MLP, tfk.nn.GatedMLP])
def test_a_layer_whose_forward_was_replaced_is_called(kind: Any) -> None:
    """Libraries that move a layer between devices replace its forward."""
    module = kind(K, HIDDEN, bias=True)
    first = next(iter(module.children()))
    calls: list[Tensor] = []
    forward = first.forward
    expected = module(x := randn((9, K), torch.float32))
    first.forward = lambda x: (calls.append(x), forward(x))[1]
    torch.testing.assert_close(module(x), expected)
    assert len(calls) == 1


_X, _W, _D = torch.ones(4, 8, requires_grad=True), torch.ones(6, 8), torch.ones(5, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recompute": 3}, "mlp: recompute is 3, expected 0, 1 or 2"),
        ({"recompute": "1"}, "mlp: recompute is '1', expected an int"),
        ({"dropout_p": 1.5}, "mlp: dropout_p is 1.5, expected a number from 0 to 1"),
        ({"residual": torch.ones(4, 4)}, r"mlp: residual has shape \(4, 4\), expected \(4, 5\)"),
        ({"residual": torch.ones(4, 5).double()}, "mlp: residual is float64, expected float32"),
        ({"residual": [1.0]}, "mlp: residual is list, expected a Tensor"),
        ({"activation": "swiglu"}, "mlp: activation is 'swiglu', expected one of gelu"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"input": _X, "weight": _W, "bias": None, "down_weight": _D} | options
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        F.mlp(**given)


def test_what_gates_refuse() -> None:
    with pytest.raises(ValueError, match="gated_mlp: up_weight has 5 rows, expected 6"):
        F.gated_mlp(_X, _W, _W[:5], _D)
    with pytest.raises(ValueError, match="gated_mlp: weight has 5 rows, expected an even number"):
        F.gated_mlp(_X, _W[:5], None, _D[:, :2])
    with pytest.raises(ValueError, match="gated_linear: up_bias is present, expected none"):
        F.gated_linear(_X, _W, None, None, torch.ones(3), recompute=2)
    for op in (F.linear_act, F.gated_linear):
        with pytest.raises(ValueError, match="recompute is -1, expected 0, 1 or 2"):
            op(_X, _W, recompute=-1)
