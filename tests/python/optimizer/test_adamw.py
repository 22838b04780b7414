# SPDX-License-Identifier: MIT
"""AdamW beside PyTorch's, from the same numbers."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.testing.tolerance import assert_close_to_reference

from .conftest import EXTENSIONS, Parameters, copies, parameters, set_gradients

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"amsgrad": True, "weight_decay": 0.0},
    {"maximize": True, "weight_decay": 0.3, "eps": 1e-3, "betas": (0.4, 0.8)},
)


def random_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A state_dict as after some steps."""
    state = copy.deepcopy(optimizer.state_dict())
    for of in state["state"].values():
        of["step"].fill_(9)
        of["exp_avg"].normal_()
        for name in of.keys() - {"step", "exp_avg"}:
            of[name].normal_().abs_()
    return state


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_step_is_torchs(device: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    params = parameters(dtype, device=device)
    theirs, exact = copies(params), copies(params, torch.float64)
    optimizers = [
        tfk.optim.AdamW(params, lr=1e-2, **options),
        torch.optim.AdamW(theirs, lr=1e-2, fused=True, **options),
        torch.optim.AdamW(exact, lr=1e-2, **options),
    ]
    set_gradients(params, theirs, exact)
    for optimizer in optimizers:
        optimizer.step()
    state = random_state(optimizers[1])
    for p, of in zip((params, theirs, exact), optimizers, strict=True):
        of.load_state_dict(copy.deepcopy(state))
        for mine, first in zip(p, theirs, strict=True):
            mine.data.copy_(first.detach())
    set_gradients(params, theirs, exact)
    for optimizer in optimizers:
        optimizer.step()
    for ours, stock, reference in zip(params, theirs, exact, strict=True):
        assert_close_to_reference(ours, stock, reference)
        mine, other, third = (
            o.state[p] for o, p in zip(optimizers, (ours, stock, reference), strict=True)
        )
        assert list(mine) == list(other)
        assert mine["step"] == 10
        for name in mine.keys() - {"step"}:
            assert mine[name].dtype is other[name].dtype
            assert_close_to_reference(mine[name], other[name], third[name], magnitude=5.0)


@pytest.mark.parametrize("wide", [torch.float64, torch.float32], ids=str)
def test_steps_are_torchs(device: str, wide: torch.dtype) -> None:
    params = parameters(wide, device=device)
    theirs, exact = copies(params), copies(params, torch.float64)

    def groups(of: Parameters) -> list[dict[str, Any]]:
        return [{"params": of[:2], "weight_decay": 0.2}, {"params": of[2:], "lr": 3e-2}]

    optimizers = [
        tfk.optim.AdamW(groups(params)),
        torch.optim.AdamW(groups(theirs), fused=True),
        torch.optim.AdamW(groups(exact)),
    ]
    for _ in range(6):
        set_gradients(params, theirs, exact)
        for optimizer in optimizers:
            optimizer.step()
    for ours, stock, reference in zip(params, theirs, exact, strict=True):
        assert_close_to_reference(ours, stock, reference)
    assert optimizers[0].state_dict()["param_groups"] == optimizers[1].state_dict()["param_groups"]


def test_states_go_to_torch_and_back() -> None:
    params = parameters(torch.float32)
    theirs = copies(params)
    ours, stock = tfk.optim.AdamW(params), torch.optim.AdamW(theirs, fused=True)
    set_gradients(params, theirs)
    ours.step()
    saved = copy.deepcopy(ours.state_dict())
    stock.load_state_dict(saved)
    back = tfk.optim.AdamW(params)
    back.load_state_dict(stock.state_dict())
    after = back.state_dict()
    assert after["param_groups"] == saved["param_groups"] == stock.state_dict()["param_groups"]
    for index, state in saved["state"].items():
        assert list(after["state"][index]) == list(state)
        for name, value in state.items():
            assert torch.equal(after["state"][index][name], value)


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("options", EXTENSIONS, ids=str)
def test_resumes_bit_for_bit(device: str, options: dict[str, Any]) -> None:
    params = parameters(torch.bfloat16, device=device)
    optimizer = tfk.optim.AdamW(params, lr=1e-2, **options)
    for _ in range(2):
        set_gradients(params)
        optimizer.step()
    resumed = copies(params)
    again = tfk.optim.AdamW(resumed, lr=1e-2, **options)
    again.load_state_dict(through_a_file(optimizer.state_dict()))
    for _ in range(2):
        set_gradients(params, resumed)
        optimizer.step()
        again.step()
    for one, two in zip(params, resumed, strict=True):
        assert torch.equal(one, two)
        for name, value in optimizer.state[one].items():
            assert torch.equal(value, again.state[two][name]), name


@pytest.mark.parametrize("options", EXTENSIONS, ids=str)
def test_is_the_same_with_any_threads(options: dict[str, Any]) -> None:
    params = parameters(torch.bfloat16, ((300, 301), (70000,), (5,)))
    others = copies(params)
    before = torch.get_num_threads()
    try:
        for threads, p in ((1, params), (2, others)):
            torch.set_num_threads(threads)
            optimizer = tfk.optim.AdamW(p, **options)
            torch.manual_seed(3)
            for _ in range(2):
                set_gradients(p)
                optimizer.step()
    finally:
        torch.set_num_threads(before)
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)


def test_copies_keep_their_options() -> None:
    params = parameters(torch.bfloat16)
    optimizer = tfk.optim.AdamW(params, master_weights=True)
    set_gradients(params)
    optimizer.step()
    assert copy.deepcopy(optimizer).options.master_weights


def test_masters_hold_what_weights_lose() -> None:
    params = parameters(torch.bfloat16, ((64, 64),))
    exact = copies(params, torch.float32)
    ours = tfk.optim.AdamW(params, lr=1e-5, master_weights=True)
    stock = torch.optim.AdamW(exact, lr=1e-5, fused=True)
    for _ in range(5):
        set_gradients(params, exact)
        ours.step()
        stock.step()
    master = ours.state[params[0]]["master"]
    torch.testing.assert_close(master, exact[0].detach(), rtol=0, atol=2e-6)
    assert torch.equal(params[0], master.bfloat16())


@pytest.mark.parametrize("state_dtype", [torch.bfloat16, torch.uint8], ids=str)
def test_narrow_moments_decay(state_dtype: torch.dtype) -> None:
    """Moments that are rounded to the nearest would stay as they are."""
    params = parameters(torch.float32, ((160, 256),))
    optimizer = tfk.optim.AdamW(params, lr=0.0, betas=(0.99, 0.99), state_dtype=state_dtype)
    set_gradients(params)
    optimizer.step()
    widen = tfk.optim.AdamW(params, state_dtype=torch.float32)

    def means() -> list[float]:
        widen.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        state = widen.state[params[0]]
        return [state["exp_avg"].abs().mean().item(), state["exp_avg_sq"].mean().item()]

    first = means()
    params[0].grad = torch.zeros_like(params[0])
    for _ in range(100):
        optimizer.step()
    for before, after in zip(first, means(), strict=True):
        assert after == pytest.approx(before * 0.99**100, rel=0.05)


def test_bytes_of_8_bit_states() -> None:
    params = parameters(torch.float32, ((1024,),))
    optimizer = tfk.optim.AdamW(params, state_dtype=torch.uint8)
    set_gradients(params)
    optimizer.step()
    state = optimizer.state[params[0]]
    assert sum(x.nbytes for x in state.values()) == 2 * (1024 + 4 * 4) + 4


def test_loads_torchs_states_into_8_bits() -> None:
    params = parameters(torch.float32, ((1000,),))
    stock = torch.optim.AdamW(params, fused=True)
    set_gradients(params)
    stock.step()
    ours = tfk.optim.AdamW(params, state_dtype=torch.uint8)
    ours.load_state_dict(stock.state_dict())
    wide = tfk.optim.AdamW(params)
    wide.load_state_dict(ours.state_dict())
    for name in ("exp_avg", "exp_avg_sq"):
        before, after = stock.state[params[0]][name], wide.state[params[0]][name]
        top = before.abs().max().item()
        torch.testing.assert_close(after, before, rtol=0.15, atol=1e-2 * top)


@pytest.mark.parametrize("clipped", [True, False])
def test_max_norm_is_clip_grad_norm(device: str, clipped: bool) -> None:
    params = parameters(torch.float32, device=device)
    theirs, exact = copies(params), copies(params, torch.float64)
    max_norm = 0.5 if clipped else 1e6
    ours = tfk.optim.AdamW(params, lr=1e-2, eps=1e-2, max_norm=max_norm)
    others = [torch.optim.AdamW(p, lr=1e-2, eps=1e-2) for p in (theirs, exact)]
    for _ in range(3):
        set_gradients(params, theirs, exact)
        before = [p.grad.clone() for p in params]
        ours.step()
        norms = [torch.nn.utils.clip_grad_norm_(p, max_norm) for p in (theirs, exact)]
        for optimizer in others:
            optimizer.step()
        assert_close_to_reference(ours.grad_norm, norms[0], norms[1])
        assert all(torch.equal(p.grad, g) for p, g in zip(params, before, strict=True))
    for mine, stock, reference in zip(params, theirs, exact, strict=True):
        assert_close_to_reference(mine, stock, reference)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_skips_a_gradient_that_is_not_finite(device: str, bad: float) -> None:
    params = parameters(torch.float32, device=device)
    optimizer = tfk.optim.AdamW(params, skip_nonfinite=True)
    set_gradients(params)
    optimizer.step()
    before = copy.deepcopy((params, optimizer.state_dict()["state"]))
    params[0].grad[3, 4] = bad
    optimizer.step()
    for p, old in zip(params, before[0], strict=True):
        assert torch.equal(p, old)
    for index, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, before[1][index][name]) for name, value in state.items())
    assert not optimizer.grad_norm.isfinite()
    params[0].grad[3, 4] = 0
    optimizer.step()
    assert optimizer.state[params[0]]["step"] == 2


@pytest.mark.parametrize("way", [{"fused": True}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("bad", [False, True])
def test_is_scaled_by_grad_scaler(device: str, bad: bool, way: dict[str, Any]) -> None:
    lists = [parameters(torch.float32, device=device)]
    lists += [copies(lists[0]) for _ in range(2)]
    optimizers: list[Any] = [
        tfk.optim.AdamW(lists[0], **way),
        torch.optim.AdamW(lists[1], **way),
    ]
    for params, optimizer in zip(lists, optimizers, strict=False):
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        scaler.scale(torch.zeros(1, device=device))
        torch.manual_seed(5)
        set_gradients(params, size=1024)
        if bad:
            params[1].grad[2] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (512 if bad else 1024)
    for start, ours, stock in zip(lists[2], *lists[:2], strict=True):
        torch.testing.assert_close(ours, stock)
        torch.testing.assert_close(ours.grad, stock.grad)
        assert bad == torch.equal(ours, start) or ours.numel() == 0
        steps = [o.state[p].get("step", 0) for o, p in zip(optimizers, (ours, stock), strict=True)]
        assert steps == [0 if bad else 1] * 2


def odd_parameters(device: str) -> Parameters:
    """Transposed, channels last, a part of a larger tensor, and of nine dimensions."""
    wide = torch.randn(6, 8, device=device)
    images = torch.randn(2, 3, 4, 5, device=device)
    return [
        torch.nn.Parameter(torch.randn(7, 9, device=device).t()),
        torch.nn.Parameter(images.to(memory_format=torch.channels_last)),
        torch.nn.Parameter(wide[:, ::2]),
        torch.nn.Parameter(torch.randn([2] * 9, device=device)),
    ]


@pytest.mark.parametrize("options", [{}, {"state_dtype": torch.uint8}], ids=str)
def test_takes_tensors_of_any_strides(device: str, options: dict[str, Any]) -> None:
    params = odd_parameters(device)
    plain = [torch.nn.Parameter(p.detach().clone(memory_format=torch.contiguous_format))
             for p in params]  # fmt: skip
    optimizers = [tfk.optim.AdamW(params, **options), torch.optim.AdamW(plain)]
    for _ in range(3):
        set_gradients(params, plain)
        params[3].grad = params[3].grad.transpose(0, 1).contiguous().transpose(0, 1)
        params[0].grad = params[0].grad.contiguous()
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(params, plain, strict=True):
        torch.testing.assert_close(p, q, **({"rtol": 0, "atol": 1e-3} if options else {}))


def test_takes_a_tensor_for_lr_and_closures_and_hooks(device: str) -> None:
    params = parameters(torch.float32, device=device)
    others = copies(params)
    lr = torch.tensor(1e-2, device=device)
    ours, stock = tfk.optim.AdamW(params, lr=lr), torch.optim.AdamW(others, lr=1e-2)
    calls: list[str] = []
    ours.register_step_pre_hook(lambda *_: calls.append("pre"))
    ours.register_step_post_hook(lambda *_: calls.append("post"))
    set_gradients(params, others)
    assert ours.step(lambda: torch.tensor(4.0)) == 4
    stock.step()
    scheduler = torch.optim.lr_scheduler.StepLR(ours, 1, 0.5)
    ours.step()
    scheduler.step()
    assert lr.item() == pytest.approx(5e-3)
    stock.step()
    assert calls == ["pre", "post"] * 2
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q)


def test_foreach_is_the_same_step(device: str) -> None:
    params = parameters(torch.float32, device=device)
    others = copies(params)
    optimizers = [
        tfk.optim.AdamW(params, foreach=True),
        torch.optim.AdamW(others, foreach=True),
    ]
    set_gradients(params, others)
    for optimizer in optimizers:
        optimizer.step()
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q)


def test_autograd_follows_a_differentiable_step() -> None:
    start, grad = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    slopes = []
    for cls in (tfk.optim.AdamW, torch.optim.AdamW):
        p = start.clone()
        p.grad = grad.clone()
        cls([p], differentiable=True, eps=1.0).step()
        slopes.append(torch.autograd.grad(p.sum(), (start, grad)))
    for ours, stock in zip(*slopes, strict=True):
        assert torch.equal(ours, stock)


def test_leaves_parameters_without_gradients() -> None:
    params = parameters(torch.float32)
    before = copies(params)
    optimizer = tfk.optim.AdamW(params)
    optimizer.step()
    set_gradients(params[:1])
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params[1:], before[1:], strict=True))
    assert not torch.equal(params[0], before[0])
    assert list(optimizer.state) == params[:1]


def test_steps_beyond_what_float32_counts() -> None:
    params = parameters(torch.float32)
    theirs = copies(params)
    optimizers = [tfk.optim.AdamW(params), torch.optim.AdamW(theirs, fused=True)]
    for optimizer, p in zip(optimizers, (params, theirs), strict=True):
        torch.manual_seed(2)
        set_gradients(p)
        optimizer.step()
        for q in p:
            optimizer.state[q]["step"].fill_(2.0**24)
        optimizer.step()
        assert optimizer.state[p[0]]["step"] == 2.0**24  # in which 1 is lost
    for ours, stock in zip(params, theirs, strict=True):
        torch.testing.assert_close(ours, stock)


def refusal(params: Any, **options: Any) -> str:
    with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        tfk.optim.AdamW(params, **options).step()
    return str(caught.value)


def test_names_what_it_refuses() -> None:
    sparse = torch.nn.Parameter(torch.zeros(3))
    sparse.grad = torch.eye(3)[0].to_sparse()
    assert "AdamW: the gradient of parameter 1 is sparse" in refusal(
        [*parameters(torch.float32, [()]), sparse]
    )
    number = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    number.grad = torch.zeros_like(number)
    assert "AdamW: parameter 0 is complex64, expected a real" in refusal([number])
    good = parameters(torch.float32)
    assert "max_norm is -1.0, expected above 0" in refusal(good, max_norm=-1.0)
    assert "state_dtype is torch.int8, expected None" in refusal(good, state_dtype=torch.int8)
    assert "seed is 9223372036854775808, expected" in refusal(good, seed=1 << 63)
    assert "Invalid learning rate" in refusal(good, lr=-1.0)


def test_raw_op_meets_its_schema() -> None:
    params = [p.detach() for p in parameters(torch.float32, ((4,), (3,)))]
    lists = [[torch.rand_like(p) for p in params] for _ in range(3)]
    steps = [torch.zeros(()) for _ in params]
    none: list[Tensor] = []
    torch.library.opcheck(
        torch.ops.transformer_kernels.adamw_.default,
        (params, *lists, none, none, none, none, steps, none, [0, 0], [0, 1],
         [0.1, 0.9, 0.99, 1e-8, 0.0, 0.0], None, None, 1.0, False, False, False, False, 0,
         torch.zeros(())),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


class HalfElsewhere(tfk.optim.AdamW):
    """Every other parameter as if it lay on another device, where PyTorch makes the step."""

    def _is_stock(self, entry: Any) -> bool:
        return entry.number % 2 == 0


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("scale", [None, 4.0])
@pytest.mark.parametrize("bad", [False, True])
def test_clips_over_several_devices(
    bad: bool, scale: float | None, options: dict[str, Any]
) -> None:
    params = parameters(torch.float32)
    others = copies(params)
    common = {"max_norm": 0.5, "skip_nonfinite": bad, "eps": 1e-2}
    both = [HalfElsewhere(params, **common, **options), tfk.optim.AdamW(others, **common)]
    set_gradients(params, others, size=scale or 1.0)
    if bad:
        params[0].grad[1, 2] = others[0].grad[1, 2] = float("nan")
    for optimizer in both:
        if scale is not None:
            optimizer.grad_scale = torch.tensor(scale)
            optimizer.found_inf = torch.tensor(0.0)
        optimizer.step()
    torch.testing.assert_close(both[0].grad_norm, both[1].grad_norm, equal_nan=True)
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q)
        assert both[0].state[p]["step"] == both[1].state[q]["step"] == (0 if bad else 1)


@pytest.mark.parametrize("options", EXTENSIONS, ids=str)
def test_is_the_same_on_any_device(device: str, options: dict[str, Any]) -> None:
    params = parameters(torch.float32, ((300, 7), (11,)))
    there = [torch.nn.Parameter(p.detach().to(device, copy=True)) for p in params]
    optimizers = [tfk.optim.AdamW(p, lr=1e-2, **options) for p in (params, there)]
    for _ in range(2):
        set_gradients(params)
        for p, q in zip(params, there, strict=True):
            q.grad = p.grad.to(device, copy=True)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(params, there, strict=True):
        # A code of 8 bits may be rounded to the other side.
        slack = 1e-2 if options.get("state_dtype") else 1e-5
        torch.testing.assert_close(q.cpu(), p, rtol=slack, atol=slack)


@pytest.mark.parametrize(
    ("size", "options", "is_stock"),
    [
        (8, {}, True),
        (8, {"amsgrad": True}, True),
        (8, {"max_norm": 1.0}, False),
        (8, {"master_weights": True}, False),
        (8, {"foreach": True}, False),
        (8000, {}, False),
    ],
)
def test_tiny_parameters_are_pytorchs(
    size: int, options: dict[str, Any], is_stock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = parameters(torch.float32, [(size,)] * 3)
    theirs = copies(params)
    set_gradients(params, theirs)
    calls = []
    made = tfk.optim.AdamW(params, **options)
    step = made._step_lists
    monkeypatch.setattr(made, "_step_lists", lambda *given: (calls.append(1), step(*given)))
    made.step()
    assert (not calls) == is_stock
    if is_stock:
        torch.optim.AdamW(theirs, fused=True, **options).step()
        assert all(map(torch.equal, params, theirs))
