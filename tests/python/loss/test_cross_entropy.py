# SPDX-License-Identifier: MIT
"""cross_entropy and token_log_probs: numbers, drop-in behaviour, messages, the module."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.ops.loss._ops import CROSS_ENTROPY
from transformer_kernels.ops.loss._stock import REDUCTIONS
from transformer_kernels.testing.case import Problem
from transformer_kernels.testing.check import check_problem
from transformer_kernels.testing.inputs import LAYOUTS, randn

ce = tfk.functional.cross_entropy
BACKENDS = ["auto", "reference", "triton"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_reduction = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])


def reference(
    x: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float = 0.0,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The loss of each row from its definition, in float64."""
    z = x.double()
    z = softcap * torch.tanh(z / softcap) if softcap else z
    classes = x.shape[-1]
    w = torch.ones(classes, device=x.device).double() if weight is None else weight.double()
    lse = torch.logsumexp(z, -1)
    if target.is_floating_point():
        q, counted = target.double(), torch.ones_like(lse)
    else:
        label = target.clamp(0, classes - 1).long()
        kept = target != ignore_index
        q = F.one_hot(label, classes).double()
        counted = w[label] * kept
    share = w * (label_smoothing / classes + (1 - label_smoothing) * q)
    loss = (share * (lse.unsqueeze(-1) - z)).sum(-1) + z_loss * counted * lse**2
    if not target.is_floating_point():
        loss = torch.where(target == ignore_index, 0.0, loss)
    if reduction == "none":
        return loss
    return loss.sum() / (counted.sum() if reduction == "mean" else 1)


def torch_way(x: Tensor, target: Tensor, weight: Any, **options: Any) -> Tensor:
    """PyTorch's loss in x's dtype; features that it lacks are operations around it."""
    given = dict.fromkeys(CROSS_ENTROPY.names, 0.0) | options
    given |= {"x": x, "target": target, "probabilities": None, "weight": weight, "wide": False}
    if target.is_floating_point():
        given |= {"target": None, "probabilities": target}
    given |= {"ignore_index": -100, "reduction": REDUCTIONS.index(options["reduction"])}
    loss: Tensor = CROSS_ENTROPY.stock(*(given[name] for name in CROSS_ENTROPY.names))
    return loss


def problem(
    x: Tensor, probabilities: bool = False, weight: bool = False, reduction: str = "mean",
    ignored: float = 0.2, **options: Any,
) -> Problem:  # fmt: skip
    classes = x.shape[-1]
    w = randn((classes,), x.dtype, x.device).abs() if weight else None
    if probabilities:
        target = torch.softmax(randn(x.shape, torch.float64, x.device), -1).to(x.dtype)
        exact: Tensor = target.double()
    else:
        target = torch.randint(0, classes, x.shape[:-1], device=x.device)
        skipped = torch.rand(target.shape, device=x.device) < ignored
        skipped[:1] = False  # the mean of no rows is NaN
        target[skipped] = -100
        exact = target
    options["reduction"] = reduction
    return Problem(
        (x,),
        lambda x, **kw: ce(x, target, w, **options, **kw),
        lambda x: torch_way(x, target, w, **options),
        lambda x: reference(x, exact, w, **options),
    )


# ---- numbers ------------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight": {"weight": True},
    "smoothing": {"label_smoothing": 0.1},
    "smoothing, weight": {"label_smoothing": 0.1, "weight": True},
    "z-loss": {"z_loss": 1e-2},
    "softcap": {"softcap": 3.0},
    "all": {"label_smoothing": 0.1, "weight": True, "z_loss": 1e-2, "softcap": 3.0},
    "probabilities": {"probabilities": True},
    "probabilities, all": {
        "probabilities": True, "label_smoothing": 0.1, "weight": True, "z_loss": 1e-2,
        "softcap": 3.0,
    },
}  # fmt: skip
each_option = pytest.mark.parametrize("name", OPTIONS)


@each_option
@each_reduction
@pytest.mark.parametrize("cols", [33, 1000])
def test_options(name: str, reduction: str, cols: int, dtype: torch.dtype, device: str) -> None:
    x = randn((11, cols), dtype, device)
    check_problem(problem(x, reduction=reduction, **OPTIONS[name]), magnitude=4.0)


@each_option
@each_backend
def test_backends(name: str, backend: str, device: str) -> None:
    x = randn((5, 75), torch.float32, device)
    for reduction in ("mean", "none"):
        made = problem(x, reduction=reduction, **OPTIONS[name])
        check_problem(made, backend=backend, magnitude=4.0)


@pytest.mark.parametrize("cols", [1, 2, 31, 32, 127, 4097, 50257])
def test_widths(cols: int, dtype: torch.dtype, device: str) -> None:
    check_problem(problem(randn((3, cols), dtype, device), ignored=0.0), magnitude=4.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, dtype: torch.dtype, device: str) -> None:
    x = LAYOUTS[layout](randn((6, 127), dtype, device))
    check_problem(problem(x, reduction="none"), magnitude=4.0)
    check_problem(problem(x, probabilities=True), magnitude=4.0)


def test_large_mean(dtype: torch.dtype, device: str) -> None:
    check_problem(problem(randn((7, 1000), dtype, device, mean=1e4)), magnitude=4.0)


@pytest.mark.cuda
@pytest.mark.parametrize("cols", [32768, 50257, 50304, 128256, 262144, 300001, 1000003])
def test_wide_rows(cols: int, dtype: torch.dtype) -> None:
    for name in ("plain", "all", "probabilities"):
        check_problem(problem(randn((9, cols), dtype, "cuda"), **OPTIONS[name]), magnitude=4.0)


@pytest.mark.cuda
@pytest.mark.large_memory
@pytest.mark.parametrize("shape", [(2**22 + 3, 513), (3, 2**30 - 1)], ids=str)
def test_more_than_2_31_elements(shape: tuple[int, int]) -> None:
    """The first and the last rows are checked, where a 32-bit offset would have wrapped."""
    free, _ = torch.cuda.mem_get_info()
    needed = 8 * 2 * shape[0] * shape[1]
    if free < needed:
        pytest.skip(f"needs {needed >> 30} GiB of device memory, {free >> 30} GiB are free")
    x = torch.randn(shape, dtype=torch.bfloat16, device="cuda").requires_grad_()
    target = torch.randint(0, shape[1], shape[:1], device="cuda")
    loss = ce(x, target, reduction="none")
    (dx,) = torch.autograd.grad(loss.sum(), x)
    for rows in (slice(0, 2), slice(shape[0] - 2, shape[0])):
        part = x.detach()[rows].clone().requires_grad_()
        expected = ce(part, target[rows], reduction="none")
        torch.testing.assert_close(loss[rows], expected)
        (gradient,) = torch.autograd.grad(expected.sum(), part)
        torch.testing.assert_close(dx[rows], gradient)


@each_option
def test_gradcheck(name: str, device: str) -> None:
    x = randn((3, 5), torch.float64, device).requires_grad_()
    for reduction in ("none", "mean"):
        function = problem(x.detach(), reduction=reduction, **OPTIONS[name]).ours
        assert torch.autograd.gradcheck(function, (x,))
        assert torch.autograd.gradgradcheck(function, (x,))


def test_gradient_of_probabilities(device: str) -> None:
    leaves = [randn((3, 5), torch.float64, device).requires_grad_() for _ in range(2)]
    weight = randn((5,), torch.float64, device)
    for options in ({}, {"weight": weight, "label_smoothing": 0.1, "z_loss": 0.1, "softcap": 2.0}):
        for reduction in ("none", "mean"):

            def function(x: Tensor, q: Tensor, o: Any = options, r: str = reduction) -> Tensor:
                return ce(x, q, reduction=r, **o)

            assert torch.autograd.gradcheck(function, leaves)
            assert torch.autograd.gradgradcheck(function, leaves)


# ---- the gradient in the forward pass -----------------------------------------------------------


@each_option
@pytest.mark.parametrize("way", ["forward", "in_place"])
def test_gradient_in_forward(name: str, way: str, dtype: torch.dtype, device: str) -> None:
    """Loss and gradient equal the default's, for an incoming gradient of 1 and for another."""
    for reduction, factor in itertools.product(("mean", "sum"), (1.0, 0.5)):
        leaf = randn((9, 130), dtype, device).requires_grad_()
        function = problem(leaf.detach(), reduction=reduction, **OPTIONS[name]).ours
        expected = function(leaf)
        (dx,) = torch.autograd.grad(expected * factor, leaf)
        x = leaf * 1
        loss = function(x, gradient=way)
        torch.testing.assert_close(loss, expected)
        (got,) = torch.autograd.grad(loss * factor, leaf)
        torch.testing.assert_close(got, dx)
        assert torch.equal(x, leaf) == (way == "forward")


def test_gradient_in_forward_is_handed_out_once(device: str) -> None:
    x = randn((4, 30), torch.float32, device).requires_grad_()
    target = torch.tensor([1, 2, 3, 4], device=device)
    loss = ce(x, target, gradient="forward")
    torch.autograd.grad(loss, x, retain_graph=True)
    with pytest.raises(RuntimeError, match="has been handed out, expected one backward pass"):
        torch.autograd.grad(loss, x)
    with pytest.raises(RuntimeError, match="has no derivative, expected create_graph=False"):
        torch.autograd.grad(ce(x, target, gradient="forward"), x, create_graph=True)


def test_gradient_in_place_is_seen_by_autograd(device: str) -> None:
    leaf = randn((4, 30), torch.float32, device).requires_grad_()
    x = leaf.tanh()  # which reads its result
    loss = ce(x, torch.tensor([1, 2, 3, 4], device=device), gradient="in_place")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_gradient_in_forward_refuses() -> None:
    leaf = torch.randn(4, 30, requires_grad=True)
    target = torch.tensor([1, 2, 3, 4])
    for arguments, words in [
        ((leaf, {"gradient": "in_place"}), "x is a leaf that requires a gradient"),
        ((leaf, {"gradient": "forward", "reduction": "none"}), "reduction is 'none', expected"),
        ((leaf, {"gradient": "forward", "backend": "reference"}), "gradient is 'forward'"),
        ((leaf, {"gradient": "sideways"}), "gradient is 'sideways', expected"),
    ]:
        x, options = arguments
        with pytest.raises(ValueError, match=f"^cross_entropy: {words}"):
            ce(x, target, **options)
    with pytest.raises(ValueError, match=r"^cross_entropy: target requires"):
        ce(leaf, torch.rand(4, 30, requires_grad=True), gradient="forward")
    before = leaf.detach().clone()
    with torch.no_grad():  # nothing asks for one
        ce(leaf, target, gradient="in_place")
    assert torch.equal(leaf, before)


def test_scaled_by_one_is_untouched(device: str) -> None:
    from transformer_kernels.ops.loss._ops import scale_gradient

    x = randn((5, 33), torch.bfloat16, device)
    for by in (1.0, 0.5):
        y = x.clone()
        scale_gradient(y, torch.tensor(by, device=device))
        torch.testing.assert_close(y, x * by)


# ---- what torch does ----------------------------------------------------------------------------

X = torch.randn(6, 8)
LABELS = torch.tensor([0, 7, 3, -100, 2, 2])
ACCEPTED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((X, LABELS), {}),
    "one row": ((X[0], torch.tensor(3)), {}),
    "one row, none": ((X[0], torch.tensor(3)), {"reduction": "none"}),
    "one row of probabilities": ((X[0], torch.rand(8)), {}),
    "images": ((torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))), {}),
    "images, none": (
        (torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))), {"reduction": "none"},
    ),
    "images of probabilities": ((torch.randn(2, 5, 3), torch.rand(2, 5, 3)), {"reduction": "none"}),
    "probabilities": ((X, torch.rand(6, 8)), {}),
    "probabilities of another dtype": ((X, torch.rand(6, 8).double()), {}),
    "weight": ((X, LABELS, torch.rand(8)), {}),
    "weight and smoothing": ((X, LABELS, torch.rand(8)), {"label_smoothing": 0.3}),
    "ignored": ((X, LABELS.abs() % 8), {"ignore_index": 2}),
    "ignored class": ((X, LABELS.abs() % 8), {"ignore_index": 2, "reduction": "none"}),
    "all ignored": ((X, torch.full((6,), -100)), {}),
    "all ignored, sum": ((X, torch.full((6,), -100)), {"reduction": "sum"}),
    "no rows": ((torch.randn(0, 8), torch.empty(0, dtype=torch.int64)), {}),
    "no rows, sum": ((torch.randn(0, 8), torch.empty(0, dtype=torch.int64)), {"reduction": "sum"}),
    "no rows, none": (
        (torch.randn(0, 8), torch.empty(0, dtype=torch.int64)), {"reduction": "none"},
    ),
    "legacy sum": ((X, LABELS, None, False), {}),
    "legacy none": ((X, LABELS, None, None, -100, False), {}),
    "bfloat16": ((X.bfloat16(), LABELS), {}),
    "transposed": ((torch.randn(8, 6).t(), LABELS), {}),
    "inf": ((X.masked_fill(X > 1, torch.inf), LABELS), {"reduction": "none"}),
    "nan": ((X.masked_fill(X > 1, torch.nan), LABELS), {"reduction": "none"}),
    "masked classes": ((X.masked_fill(X > 0.5, -torch.inf), LABELS), {"reduction": "none"}),
    "masked classes, smoothing": (
        (X.masked_fill(X > 0.5, -torch.inf), LABELS),
        {"reduction": "none", "label_smoothing": 0.1},
    ),
    "nothing but -inf": ((torch.full((6, 8), -torch.inf), LABELS), {"reduction": "none"}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_torch_accepts(name: str, backend: str, device: str) -> None:
    arguments, options = ACCEPTED[name]
    arguments = tuple(a.to(device) if isinstance(a, Tensor) else a for a in arguments)
    x = arguments[0].clone().requires_grad_()
    ours = ce(x, *arguments[1:], **options, backend=backend)
    theirs = F.cross_entropy(x, *arguments[1:], **options)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if x.dtype is torch.bfloat16 else {}
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)
    if "inf" in name or "nan" in name:
        return
    gradients = [torch.autograd.grad(loss.sum(), x)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, equal_nan=True, **tolerance)


def test_int32_labels(device: str) -> None:
    x, labels = X.to(device), LABELS.to(device)
    assert torch.equal(ce(x, labels.int()), ce(x, labels))


REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "no dimensions": ((torch.tensor(1.0), torch.tensor(0)), {}, "x has 0 dimensions"),
    "too few labels": ((X, LABELS[1:]), {}, "target has shape (5,), expected (6,) (labels) or"),
    "integers as probabilities": ((X, X.long()), {}, "target is int64, expected a floating-point"),
    "floats as labels": ((X, torch.rand(6)), {}, "target is float32, expected int32 or int64"),
    "no classes": ((X[:, :0], LABELS), {}, "x has shape (6, 0), expected a class or more"),
    "a label too large": (
        (X, LABELS + 1), {}, "target is 8 in row 1, expected one of [0, 7] or -100 (ignore_index)",
    ),
    "a negative label": (
        (X, LABELS), {"ignore_index": 3}, "target is -100 in row 3, expected one of [0, 7] or 3",
    ),
    "reduction": ((X, LABELS), {"reduction": "max"}, "reduction is 'max', expected 'none'"),
    "ignored probabilities": (
        (X, torch.rand(6, 8)), {"ignore_index": 3}, "ignore_index is 3, expected none",
    ),
    "weight with a gradient": (
        (X, LABELS, torch.rand(8, requires_grad=True)), {}, "weight requires a gradient",
    ),
    "no target": ((X, None), {}, "target is NoneType, expected a Tensor"),
    "sparse": ((X.to_sparse(), LABELS), {}, "x is of layout sparse_coo"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    arguments, options, words = REFUSED[name]
    for backend in ("auto", "reference"):
        with pytest.raises((ValueError, TypeError)) as caught:
            ce(*arguments, **options, backend=backend)
        message = str(caught.value)
        assert message.startswith(f"cross_entropy: {words}"), message


@each_backend
def test_labels_out_of_range_off_the_cpu(backend: str) -> None:
    """Labels are not waited for: a row whose label is no class is NaN, and so are its sums."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x = torch.randn(6, 40, device="cuda", requires_grad=True)
    labels = torch.tensor([0, 1, 40, 3, -1, 5], device="cuda")
    loss = ce(x, labels, reduction="none", backend=backend)
    (dx,) = torch.autograd.grad(loss.sum(), x)
    for values in (loss, dx[:, 0], dx[:, 39]):
        assert values.isnan().tolist() == [False, False, True, False, True, False]
    assert ce(x, labels, backend=backend).isnan()


# ---- kinds of calls -----------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@each_reduction
def test_compile(dynamic: bool, reduction: str, device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(ce, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (4, 6):
        x = randn((rows, 24), torch.float32, device).requires_grad_()
        target = torch.randint(0, 24, (rows,), device=device)
        for gradient in ("backward", "forward"):
            if gradient == "forward" and reduction == "none":
                continue
            outcomes = []
            for function in (ce, compiled):
                loss = function(
                    x, target, reduction=reduction, label_smoothing=0.1, gradient=gradient
                )
                outcomes.append((loss, torch.autograd.grad(loss.sum(), x)[0]))
            torch.testing.assert_close(*outcomes)


def test_export_keeps_one_node() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(9, 9)

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return ce(self.head(x), target)

    model, arguments = Model(), (torch.randn(4, 9), torch.tensor([1, 2, 3, 4]))
    program = torch.export.export(model, arguments)
    names = {str(node.target) for node in program.graph.nodes}
    assert "transformer_kernels.cross_entropy.default" in names
    torch.testing.assert_close(program.module()(*arguments), model(*arguments))


@pytest.mark.cuda
def test_cuda_graph() -> None:
    """Each replay has new labels and logits, with an ignored row."""
    x = torch.randn(64, 5003, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(0, 5003, (64,), device="cuda")

    def step(gradient: str) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        loss = ce(leaf, target, gradient=gradient)
        return loss, torch.autograd.grad(loss * 0.5, leaf)[0]

    for gradient in ("backward", "forward"):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(gradient)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step(gradient)
        for _ in range(2):
            x.copy_(torch.randn_like(x))
            target.copy_(torch.randint_like(target, 0, 5003))
            target[5] = -100
            graph.replay()
            torch.testing.assert_close(captured, step("backward"))


def test_jagged(device: str) -> None:
    rows = [randn((n, 9), torch.float32, device) for n in (3, 1, 5)]
    labels = [torch.randint(0, 9, (n,), device=device) for n in (3, 1, 5)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged)
    target = torch.nested.nested_tensor(labels, layout=torch.jagged)
    flat, flat_labels = torch.cat(rows), torch.cat(labels)
    torch.testing.assert_close(ce(x, target), F.cross_entropy(flat, flat_labels))
    losses = ce(x, target, reduction="none")
    torch.testing.assert_close(
        losses.values(), F.cross_entropy(flat, flat_labels, reduction="none")
    )
    log_probs = tfk.functional.token_log_probs(x, target)
    torch.testing.assert_close(log_probs.values(), -losses.values())


def test_func_transforms() -> None:
    x, target = torch.randn(3, 5, 8, dtype=torch.float64), torch.randint(0, 8, (3, 5))
    mapped = torch.func.vmap(ce)(x, target)
    expected = torch.stack([F.cross_entropy(a, b) for a, b in zip(x, target, strict=True)])
    torch.testing.assert_close(mapped, expected)
    for gradient in ("backward", "forward"):
        dx = torch.func.grad(lambda x, g=gradient: ce(x, target[0], gradient=g))(x[0])
        torch.testing.assert_close(
            dx, torch.func.grad(lambda x: F.cross_entropy(x, target[0]))(x[0])
        )


@pytest.mark.cuda
def test_autocast_keeps_the_logits() -> None:
    x = torch.randn(6, 40, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, 40, (6,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        ours, theirs = ce(x, target), F.cross_entropy(x, target)
    assert ours.dtype is theirs.dtype is torch.float32
    torch.testing.assert_close(ours, F.cross_entropy(x.float(), target))


# ---- log-probabilities --------------------------------------------------------------------------


@each_backend
def test_token_log_probs(backend: str, dtype: torch.dtype, device: str) -> None:
    logits = randn((2, 3, 40), dtype, device).requires_grad_()
    tokens = torch.randint(0, 40, (2, 3), device=device)
    got = tfk.functional.token_log_probs(logits, tokens, backend=backend)
    wide = logits.double()
    expected = torch.log_softmax(wide, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    assert got.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    (dx,) = torch.autograd.grad(got.sum(), logits)
    (exact,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(dx, exact)


def test_token_log_probs_of_padding_and_errors(device: str) -> None:
    logits = randn((2, 3, 40), torch.float32, device).requires_grad_()
    tokens = torch.randint(0, 40, (2, 3), device=device)
    tokens[1, 2] = -100
    got = tfk.functional.token_log_probs(logits, tokens, softcap=5.0)
    assert got[1, 2] == 0
    (dx,) = torch.autograd.grad(got.sum(), logits)
    assert not dx[1, 2].any()
    assert torch.autograd.gradcheck(
        lambda x: tfk.functional.token_log_probs(x, tokens, softcap=5.0), (logits.double(),)
    )
    with pytest.raises(ValueError, match="target has shape"):
        tfk.functional.token_log_probs(logits, tokens[0])


# ---- the module ---------------------------------------------------------------------------------


def test_module_is_torchs() -> None:
    for options in ({}, {"weight": torch.rand(8), "label_smoothing": 0.1}, {"reduction": "none"}):
        a, b = tfk.nn.CrossEntropyLoss(**options), torch.nn.CrossEntropyLoss(**options)
        assert isinstance(a, torch.nn.CrossEntropyLoss)
        assert repr(a) == repr(b)
        assert a.state_dict().keys() == b.state_dict().keys()
        for twin in (a, copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
            torch.testing.assert_close(twin(X, LABELS), b(X, LABELS))
        b.__class__ = tfk.nn.CrossEntropyLoss
        torch.testing.assert_close(b(X, LABELS), a(X, LABELS))
    module = tfk.nn.CrossEntropyLoss(z_loss=0.1, softcap=3.0, gradient="forward")
    assert repr(module) == "CrossEntropyLoss(z_loss=0.1, softcap=3.0, gradient='forward')"
    expected = ce(X, LABELS, z_loss=0.1, softcap=3.0)
    torch.testing.assert_close(module(X, LABELS), expected)
