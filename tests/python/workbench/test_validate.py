# SPDX-License-Identifier: MIT
"""Checks of every module: the first fault by its path, and the model left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transformer_kernels as tfk
from transformer_kernels.workbench import Expected, FaultError, ModuleChecks

DIM = 8


class Bad(nn.Module):
    """Puts a bad number into the result, or with ``backward`` into the gradient."""

    def __init__(self, value: float, at: tuple[int, ...] = (1, 2), backward: bool = False) -> None:
        super().__init__()
        self.value, self.at, self.backward = value, at, backward

    def forward(self, x: Tensor) -> Tensor:
        factor = torch.ones_like(x)
        factor[self.at] = self.value
        if not self.backward:
            return x * factor
        return x + (x * factor - (x * factor).detach()) if self.value == self.value else _nan(x)


def _nan(x: Tensor) -> Tensor:
    """Returns x, and gives its gradient NaN."""
    zero = (x * 0).pow(2).sum(-1, keepdim=True).sqrt()
    return x + zero


class Block(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm = tfk.nn.LayerNorm(DIM)
        self.inner = inner
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        y = y if mask is None else tfk.functional.softmax(y, -1, mask=mask)
        return x + self.out(self.inner(y))


def _model(inner: nn.Module) -> nn.Sequential:
    return nn.Sequential(Block(nn.Identity()), Block(inner), Block(nn.Identity()))


def _x() -> Tensor:
    return torch.randn(4, DIM)


def test_a_good_model(device: str) -> None:
    model = _model(nn.Identity()).to(device)
    report = tfk.validate(model, _x().to(device), gradients=True)
    assert report
    assert report.fault is None
    assert report.seen.modules == 1 + 3 * 4
    assert report.seen.gradients > 0
    assert str(report).startswith("ok\nforward and backward: 13 calls of modules")
    report.raise_for_fault()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_the_first_bad_output(value: float, device: str) -> None:
    fault = tfk.validate(_model(Bad(value)).to(device), _x().to(device)).fault
    assert fault is not None
    kind = "nan" if value != value else "inf"
    assert (fault.path, fault.module, fault.where) == ("1.inner", "Bad", "output")
    assert (fault.kind, fault.count, fault.total) == (kind, 1, 4 * DIM)
    assert fault.first == (1, 2)
    word = {"nan": "NaN", "inf": "infinity"}[kind]
    assert str(fault) == (
        f"1.inner (Bad): output has 1 {word} among 32 elements of (4, 8), the first at (1, 2)"
    )


def test_a_bad_input_and_a_bad_parameter() -> None:
    model, x = _model(nn.Identity()), _x()
    x[3, 0] = torch.nan
    fault = tfk.validate(model, x).fault
    assert fault is not None
    assert (fault.path, fault.where, fault.first) == ("", "input input", (3, 0))
    with torch.no_grad():
        model[1].out.weight[5, 6] = torch.inf
    fault = tfk.validate(model, {"input": _x()}).fault
    assert fault is not None
    assert (fault.path, fault.where, fault.first) == ("1.out", "parameter weight", (5, 6))


def test_a_bad_gradient_is_found_on_request() -> None:
    model = _model(Bad(torch.nan, backward=True))
    assert tfk.validate(model, _x())
    fault = tfk.validate(model, _x(), gradients=True).fault
    assert fault is not None
    assert (fault.path, fault.kind) == ("1.inner", "nan")
    assert fault.where == "gradient of input x (also output of 1.norm)"


def test_a_loss_of_the_users() -> None:
    model = _model(nn.Identity())
    fault = tfk.validate(model, _x(), gradients=True, loss=lambda y: (y * torch.nan).sum()).fault
    assert fault is not None
    assert (fault.path, fault.where) == ("", "gradient of output (also output of 2)")


def test_a_mask_may_hide() -> None:
    mask = torch.zeros(DIM)
    mask[0] = -torch.inf
    block = Block(nn.Identity())
    assert tfk.validate(block, {"x": _x(), "mask": mask})
    mask[1] = torch.nan
    fault = tfk.validate(block, (_x(), mask)).fault
    assert fault is not None
    assert (fault.where, fault.kind, fault.first) == ("input mask", "nan", (1,))


def test_a_module_that_raises() -> None:
    fault = tfk.validate(_model(nn.Linear(DIM + 1, DIM)), _x()).fault
    assert fault is not None
    assert (fault.path, fault.module, fault.kind) == ("1.inner", "Linear", "error")
    assert "RuntimeError" in str(fault)


def test_what_is_expected() -> None:
    model = _model(nn.Identity())
    good = {
        ":input": Expected(("rows", DIM), torch.float32, "cpu"),
        "1:output": Expected(("rows", None)),
    }
    assert tfk.validate(model, _x(), expected=good)
    for wanted, kind, words in (
        (Expected(("rows", 9)), "shape", "has shape (4, 8), expected (rows=4, 9)"),
        (Expected((None,)), "shape", "has shape (4, 8), expected (any)"),
        (Expected(dtype=torch.float64), "dtype", "is float32, expected float64"),
        (Expected(device="cuda"), "device", "is on cpu, expected cuda"),
    ):
        fault = tfk.validate(model, _x(), expected={**good, "1.inner:output": wanted}).fault
        assert fault is not None
        assert (fault.path, fault.where, fault.kind) == ("1.inner", "output", kind)
        assert fault.detail == words
    assert tfk.validate(model, _x(), expected={"1:output": Expected((9,))}, checks=("nan",))


def test_tensors_on_several_devices() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(DIM, DIM))
    fault = tfk.validate(model, _x().to("meta")).fault
    assert fault is not None
    assert (fault.path, fault.kind) == ("1", "device")
    assert fault.detail == "is on meta, expected cpu (as its parameters)"


def test_results_in_containers() -> None:
    class Pair(nn.Module):
        def forward(self, x: dict[str, list[Tensor]]) -> dict[str, Any]:
            return {"logits": (x["a"][0], x["a"][0] / 0.0), "text": "no tensor"}

    fault = tfk.validate(Pair(), ({"a": [_x()]},)).fault
    assert fault is not None
    assert fault.where == "output['logits'][1]"


@pytest.mark.parametrize("inner", [nn.Identity(), Bad(torch.nan), nn.Linear(9, 9)], ids=repr)
def test_the_model_is_as_before(inner: nn.Module) -> None:
    model = nn.Sequential(_model(inner), nn.BatchNorm1d(DIM), nn.Dropout(0.5))
    model[1].eval()
    x = _x().requires_grad_()
    model[0][0].out.weight.grad = kept = torch.ones(DIM, DIM)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    tfk.validate(model, x, gradients=True)
    tfk.validate(model.train(), x, gradients=True)
    model[1].eval()
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert model[0][0].out.weight.grad is kept
    assert torch.equal(kept, torch.ones(DIM, DIM))
    others = [p.grad for p in model.parameters() if p is not model[0][0].out.weight]
    assert x.grad is None
    assert not any(gradient is not None for gradient in others)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not any(p._backward_hooks for p in model.parameters())
    assert not x._backward_hooks


def test_hooks_of_a_users_loop() -> None:
    model = _model(Bad(torch.inf))
    with ModuleChecks(model), pytest.raises(FaultError, match=r"^1\.inner") as caught:
        model(_x())
    assert caught.value.fault.kind == "inf"
    model(_x())  # nothing watches any more


def test_a_model_that_catches_an_error() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails, self.bad = nn.Linear(DIM + 1, DIM), Bad(torch.nan)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.fails(x)
            except RuntimeError:
                return self.bad(x)

    fault = tfk.validate(Tries(), _x()).fault
    assert fault is not None
    assert (fault.path, fault.kind) == ("bad", "nan")


def test_a_long_loop_keeps_no_handles() -> None:
    model = _model(nn.Identity())
    with ModuleChecks(model, gradients=True) as watched:
        model(_x()).sum().backward()
        kept = len(watched._handles)
        for _ in range(3):
            model(_x()).sum().backward()
        assert len(watched._handles) <= 2 * kept


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchScript
def test_what_is_compiled_is_seen_from_outside() -> None:
    compiled = torch.compile(_model(Bad(torch.inf)), backend="eager")
    model = nn.Sequential(nn.Identity(), compiled, torch.jit.trace(nn.Linear(DIM, DIM), _x()))
    report = tfk.validate(model, _x())
    assert report.fault is not None
    assert (report.fault.path, report.fault.where) == ("1", "output")
    assert report.seen.modules == 3


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("model is int, expected an nn.Module", lambda _: tfk.validate(3, _x())),
        ("inputs is int, expected a Tensor", lambda m: tfk.validate(m, 3)),
        ("loss is int, expected a function", lambda m: tfk.validate(m, _x(), loss=3)),
        ("checks has 'zero', expected some of", lambda m: tfk.validate(m, _x(), checks=("zero",))),
        ("checks is 'nan', expected names", lambda m: tfk.validate(m, _x(), checks="nan")),
        ("expected has '7:x', expected", lambda m: ModuleChecks(m, expected={"7:x": Expected()})),
        ("expected\\['0:x'\\] is int, expected", lambda m: ModuleChecks(m, expected={"0:x": 3})),
        ("shape is \\(1.5,\\), expected a tuple", lambda _: Expected((1.5,))),
        ("dtype is 'float', expected a torch.dtype", lambda _: Expected(dtype="float")),
    ],
)
def test_bad_arguments(words: str, call: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call(_model(nn.Identity()))
