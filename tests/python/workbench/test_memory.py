# SPDX-License-Identifier: MIT
"""Memory by op: each byte of a step is counted once, and has an owner."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import transformer_kernels as tfk

ROWS, COLS = 32, 64
FLOAT = 4
X = ROWS * COLS * FLOAT  # bytes of an activation


def _model() -> nn.Sequential:
    return nn.Sequential(tfk.nn.LayerNorm(COLS), nn.Linear(COLS, COLS), tfk.nn.GELU())


def test_a_step_to_the_byte(device: str) -> None:
    model, x = _model().to(device), torch.randn(ROWS, COLS, device=device)
    with tfk.workbench.account_memory(model) as account:
        model(x).backward(torch.ones_like(x))
    statistics, column = 2 * ROWS * FLOAT, COLS * FLOAT
    norm, gelu = account.ops["layer_norm"], account.ops["gelu"]
    # x does not require a gradient; its norm's backward pass gives dx all the same.
    assert (norm.calls, norm.forward, norm.saved) == (1, X + statistics, X + statistics)
    assert norm.backward == X + 2 * column
    assert (gelu.calls, gelu.forward, gelu.backward, gelu.saved) == (1, X, X, X)
    others = account.ops["PyTorch"]
    assert others.saved == X  # what the linear layer read
    assert [*account.ours] == ["layer_norm", "gelu"]
    assert account.saved_bytes == norm.saved + gelu.saved + others.saved
    assert account.allocated_bytes == sum(op.forward + op.backward for op in account.ops.values())
    assert [record["op"] for record in account.records()] == [*account.ops]


def test_what_is_live_and_what_was_at_peak() -> None:
    with tfk.workbench.account_memory() as account:
        a = torch.empty(100, dtype=torch.uint8)
        view = a[50:]
        del a
        gc.collect()
        assert account.live_bytes == 100  # the view holds it
        torch.empty(1000, dtype=torch.uint8)
        assert (account.live_bytes, account.peak_bytes) == (100, 1100)
        view.add_(1)
        del view
        assert (account.live_bytes, account.peak_bytes) == (0, 1100)
    assert account.allocated_bytes == 1100


def test_inference_keeps_nothing() -> None:
    model = _model()
    with torch.no_grad(), tfk.workbench.account_memory(model) as account:
        model(torch.randn(ROWS, COLS))
    assert account.saved_bytes == 0
    assert account.ops["layer_norm"].forward == X  # without the statistics


def test_a_tensor_that_two_ops_keep_counts_once() -> None:
    x = torch.randn(ROWS, COLS, requires_grad=True)
    with tfk.workbench.account_memory() as account:
        h = x + 1
        tfk.functional.gelu(h) * tfk.functional.silu(h)
    assert account.ops["gelu"].saved == X
    assert account.ops["silu"].saved == 0
    assert account.ops["PyTorch"].saved == 2 * X  # both factors


def test_drop_in_and_copies_belong_to_the_op() -> None:
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    with tfk.workbench.account_memory() as account:
        tfk.functional.scaled_dot_product_attention(q, q, q)
        tfk.functional.softmax(torch.randn(8, 8), 0)
    statistics = 2 * (2 * 8 * FLOAT)  # lse and lse_rest of 2 heads with 8 rows
    assert account.ops["attention"].forward == q.nbytes + statistics
    assert account.ops["softmax"].forward >= 8 * 8 * FLOAT
    assert "scaled_dot_product_attention" not in account.ops


def test_nothing_is_left_behind() -> None:
    def modes() -> tuple[int, int]:
        return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()

    before = modes()
    try:
        with tfk.workbench.account_memory() as account:
            x = torch.empty(10)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert modes() == before
    peak = account.peak_bytes
    del x
    torch.empty(1000)
    assert account.peak_bytes == peak


@pytest.mark.parametrize("model", [3, "model", nn.Linear])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match=r"^account_memory: model is .*, expected an nn.Module"):
        tfk.workbench.account_memory(model)


def test_shown() -> None:
    model = _model()
    with tfk.workbench.account_memory(model) as account:
        model(torch.randn(ROWS, COLS)).sum().backward()
    lines = str(account).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["layer_norm", "gelu", "PyTorch"]
    assert lines[-1].startswith(f"bytes; at peak {account.peak_bytes:,}")
