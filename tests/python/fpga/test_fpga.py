# SPDX-License-Identifier: MIT
"""backend="fpga": attention, softmax and linear on the array's model, in int8."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels._library import has_kernels
from transformer_kernels.functional import attention, attention_varlen, linear, log_softmax, softmax
from transformer_kernels.testing.attention import exact, tensors

pytestmark = pytest.mark.skipif(not has_kernels, reason="needs the native library")

TOLERANCE = 4e-2  # of int8 operands, relative to the norm
LSE_TOLERANCE = 0.1
SETS = ["r2c4d64n256", "r4c16d64n1024", "r8c8d64n1024", "r4c16d128n1024"]


def relative_error(found: Tensor, wanted: Tensor) -> float:
    difference = (found.double() - wanted.double()).norm()
    return float(difference / wanted.double().norm().clamp_min(1e-30))


def check(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    out, lse = attention(q, k, v, return_lse=True, backend="fpga", **options)
    wanted, wanted_lse = exact(q.double(), k.double(), v.double(), **options)
    assert out.dtype is q.dtype
    assert out.shape == wanted.shape
    assert relative_error(out, wanted) <= TOLERANCE
    empty = wanted_lse == -torch.inf
    assert torch.equal(lse == -torch.inf, empty)
    assert bool(((lse - wanted_lse).abs() <= LSE_TOLERANCE)[~empty].all())


# ---- attention ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1), (64, 128), (239, 1), (113, 203), (1, 300)], ids=str)
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (3, 1)], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "top_left": True}],
                         ids=["full", "causal", "top_left"])  # fmt: skip
def test_sizes(size: tuple[int, int], heads: tuple[int, int], options: dict[str, Any]) -> None:
    check(*tensors(*size, *heads), **options)


@pytest.mark.parametrize("dim", [1, 3, 8, 40, 96, 128])
def test_head_dims(dim: int, dtype: torch.dtype) -> None:
    check(*tensors(33, 57, dim=dim, dtype=dtype), causal=True)


def test_values_of_another_dim() -> None:
    check(*tensors(20, 30, 4, 2, 64, 16))


@pytest.mark.parametrize("causal", [False, True])
def test_keys_beyond_the_buffers(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFK_FPGA_ARRAY", "r2c4d64n256")
    for keys in (257, 1100):
        check(*tensors(19, keys, 4, 2, batch=1), causal=causal)


@pytest.mark.parametrize("name", SETS)
def test_sets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFK_FPGA_ARRAY", name)
    check(*tensors(21, 43, 4, 2), causal=True)


def test_options_and_layouts() -> None:
    q, k, v = tensors(10, 12)
    check(q, k, v, scale=-0.3)
    wide = torch.randn(2, 10, 6, 128)[:, :, ::3, ::2]
    check(wide, k, v)
    heads_first = attention(*(x.transpose(1, 2) for x in (q, k, v)), heads_first=True,
                            backend="fpga")  # fmt: skip
    assert torch.equal(heads_first.transpose(1, 2), attention(q, k, v, backend="fpga"))


def test_a_window_to_the_right_moves_the_diagonal() -> None:
    check(*tensors(10, 12), window=(-1, 3))


def test_compiled() -> None:
    @torch.compile(fullgraph=True)
    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attention(q, k, v, backend="fpga")

    q, k, v = tensors(8, 9)
    assert torch.equal(call(q, k, v), attention(q, k, v, backend="fpga"))


def test_counters() -> None:
    q, k, v = tensors(64, 256, batch=1)
    with tfk.fpga.count() as spent:
        attention(q, k, v, backend="fpga")
    assert spent.commands == 2
    assert spent.useful == 2 * 64 * 256 * 64
    assert spent.possible == spent.cycles * 64
    assert 0.85 <= spent.utilization <= 1


# ---- softmax and linear -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (7, 1), (3, 5, 300), (2, 8191), (1, 4, 4)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_softmax(shape: tuple[int, ...], causal: bool, dtype: torch.dtype) -> None:
    if causal and len(shape) < 2:
        pytest.skip("causal masks have two dimensions")
    x = torch.randn(shape, dtype=dtype) * 3
    y = softmax(x, -1, causal=causal, backend="fpga")
    assert y.dtype is dtype
    wanted = softmax(x.double(), -1, causal=causal, backend="reference")
    assert relative_error(y, wanted) <= TOLERANCE


def test_softmax_over_another_dim() -> None:
    x = torch.randn(5, 6, 7)
    assert relative_error(softmax(x, 1, backend="fpga"), torch.softmax(x, 1)) <= TOLERANCE


def test_softmax_of_rows_that_are_hidden() -> None:
    x = torch.full((2, 3, 3), -torch.inf)
    x[0, 1, 2] = 1.0
    expected = torch.softmax(x, -1)
    torch.testing.assert_close(softmax(x, -1, backend="fpga"), expected, equal_nan=True, atol=2e-5,
                               rtol=0)  # fmt: skip
    hidden = softmax(torch.ones(3, 2), -1, causal=True, backend="fpga")[0]
    assert torch.equal(hidden, torch.zeros(2))


SHAPES = [(1, 1, 1), (5, 64, 256), (9, 200, 1030), (2, 63, 65)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(shape: tuple[int, int, int], with_bias: bool, dtype: torch.dtype) -> None:
    rows, cols, outputs = shape
    x, weight = torch.randn(2, rows, cols, dtype=dtype), torch.randn(outputs, cols, dtype=dtype)
    bias = torch.randn(outputs, dtype=dtype) if with_bias else None
    y = linear(x, weight, bias, backend="fpga")
    assert y.dtype is dtype
    exact_bias = None if bias is None else bias.double()
    assert relative_error(y, F.linear(x.double(), weight.double(), exact_bias)) <= TOLERANCE


def test_linear_is_pytorchs_otherwise() -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    for backend in ("auto", "reference"):
        assert torch.equal(linear(x, weight, bias, backend=backend), F.linear(x, weight, bias))


# ---- a board ------------------------------------------------------------------------------------


@pytest.mark.skipif("TFK_FPGA_BOARD" not in os.environ, reason="TFK_FPGA_BOARD names no folder")
def test_a_board_gives_what_the_model_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated board that `make fpga` builds of a set, behind a socket, matches the model."""
    program = Path(os.environ["TFK_FPGA_BOARD"]) / "r2c4d64n256" / "board"
    socket = tmp_path / "board"
    with subprocess.Popen([str(program), str(socket)]) as board:
        try:
            deadline = time.monotonic() + 120  # only a hang takes it
            while not socket.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            monkeypatch.setenv("TFK_FPGA_ARRAY", "r2c4d64n256")
            q, k, v = tensors(9, 300, 4, 2, batch=1)
            x, weight = torch.randn(5, 70), torch.randn(300, 70)

            def call() -> list[Tensor]:
                return [
                    attention(q, k, v, causal=True, backend="fpga"),
                    softmax(x, -1, backend="fpga"),
                    linear(x, weight, backend="fpga"),
                ]

            wanted = call()
            monkeypatch.setenv("TFK_FPGA_TRANSPORT", f"stream:{socket}")
            for found, expected in zip(call(), wanted, strict=True):
                assert torch.equal(found, expected)
        finally:
            board.kill()


# ---- refusals -----------------------------------------------------------------------------------


def _qkv(dim: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    return tensors(4, 6, dim=dim)


REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "mask": (
        lambda: attention(*_qkv(), mask=torch.ones(4, 6, dtype=torch.bool), backend="fpga"),
        r"attention: mask is given, expected none, or causal",
    ),
    "bias": (lambda: attention(*_qkv(), bias=torch.ones(4, 6), backend="fpga"),
             r"attention: bias is given, expected none"),
    "dropout": (lambda: attention(*_qkv(), dropout=0.5, backend="fpga"),
                r"attention: dropout is given, expected 0"),
    "softcap": (lambda: attention(*_qkv(), softcap=5.0, backend="fpga"),
                r"attention: softcap is given, expected 0"),
    "window": (lambda: attention(*_qkv(), window=(3, 0), backend="fpga"),
               r"attention: window_left is given, expected -1"),
    "sinks": (lambda: attention(*_qkv(), sinks=torch.ones(2), backend="fpga"),
              r"attention: sinks is given, expected none"),
    "head dim": (lambda: attention(*_qkv(129), backend="fpga"),
                 r"attention: a head dim is 129, expected one that an array is built for \(r1c2"),
    "varlen": (
        lambda: attention_varlen(*(torch.randn(5, 2, 64) for _ in range(3)),
                                 torch.tensor([0, 2, 5], dtype=torch.int32), backend="fpga"),
        r"attention: cu_seqlens_q is given, expected sequences of one length",
    ),
    "nan": (lambda: attention(*(x * torch.nan for x in _qkv()), backend="fpga"),
            r"attention: q has elements that are NaN or infinite"),
    "scores": (lambda: attention(*_qkv(), scale=1e4, backend="fpga"),
               r"attention: q and k have products beyond"),
    "log": (lambda: log_softmax(torch.ones(3, 4), -1, backend="fpga"),
            r"log_softmax: log is true, expected false"),
    "softmax mask": (lambda: softmax(torch.ones(3, 4), -1, mask=torch.ones(4), backend="fpga"),
                     r"softmax: mask is given, expected none, or causal"),
    "softmax width": (lambda: softmax(torch.ones(2, 8192), -1, backend="fpga"),
                      r"softmax: x has rows of 8192, expected at most 8191"),
    "no kernel": (lambda: tfk.functional.gelu(torch.ones(3), backend="fpga"),
                  r"gelu: backend is 'fpga', expected 'auto' \(an array has no kernel of it\)"),
    "linear shape": (lambda: linear(torch.ones(3), torch.ones(2, 4), backend="fpga"),
                     r"linear: weight has shape \(2, 4\), expected \(2, 3\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    call, message = REFUSALS[name]
    with pytest.raises(tfk.ArgumentValueError, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: attention(x, x, x, backend="fpga"),
        lambda x: softmax(x, -1, backend="fpga"),
        lambda x: linear(x, torch.ones(3, 64), backend="fpga"),
    ],
    ids=["attention", "softmax", "linear"],
)
def test_gradients_are_refused(call: Callable[[Tensor], Any]) -> None:
    x = torch.randn(1, 2, 2, 64, requires_grad=True)
    with pytest.raises(tfk.ArgumentValueError, match="requires a gradient, expected none"):
        call(x)
    with torch.no_grad():
        call(x)


def test_unknown_arrays_and_transports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFK_FPGA_ARRAY", "r9")
    with pytest.raises(
        tfk.ArgumentValueError, match=r"^attention: array is 'r9', expected one of r1c2"
    ):
        attention(*_qkv(), backend="fpga")
    monkeypatch.setenv("TFK_FPGA_ARRAY", "r4c8d32n256")
    message = r"^attention: q has a head dim of 64, expected at most 32 \(the array r4c8d32n256\)"
    with pytest.raises(tfk.ArgumentValueError, match=message):
        attention(*_qkv(), backend="fpga")
    monkeypatch.delenv("TFK_FPGA_ARRAY")
    monkeypatch.setenv("TFK_FPGA_TRANSPORT", "pigeon")
    with pytest.raises(
        tfk.ArgumentValueError, match=r"^attention: transport is 'pigeon', expected"
    ):
        attention(*_qkv(), backend="fpga")
