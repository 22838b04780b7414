# SPDX-License-Identifier: MIT
"""Step 5: the extension is a whole operator of PyTorch, and the fuser sees through it."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from types import ModuleType

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.tutorial import rungs

STEP = rungs.TUTORIALS / "step5-integration"
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def extension() -> ModuleType:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    sys.path.insert(0, str(STEP))
    module = importlib.import_module("cpu2_extension")
    module.load()
    return module


def test_the_operators_are_whole(extension):
    x = torch.randn(3, 21, requires_grad=True)
    torch.library.opcheck(torch.ops.step5.gelu, (x,))
    torch.library.opcheck(torch.ops.step5.gelu_backward, (torch.randn(3, 21), x.detach()))


def test_value_and_slope_are_those_of_double_precision(extension):
    x = torch.cat([torch.randn(10_001) * 4, torch.tensor([-1e30, -88.0, -0.0, 88.0, 1e18])])
    exact = x.double().requires_grad_()
    wanted = torch.nn.functional.gelu(exact, approximate="tanh")
    (slope,) = torch.autograd.grad(wanted.sum(), exact)
    torch.testing.assert_close(torch.ops.step5.gelu(x).double(), wanted, rtol=1e-5, atol=1e-5)
    ours = torch.ops.step5.gelu_backward(torch.ones_like(x), x).double()
    torch.testing.assert_close(ours, slope, rtol=1e-5, atol=1e-5)
    assert torch.ops.step5.gelu(torch.tensor([torch.nan])).isnan().all()


def test_the_library_for_cuda_compiles(extension, tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    command = importlib.import_module("compiled").command("extension.cu", tmp_path / "kernels.ptx")
    subprocess.run([*command, "-ptx"], cwd=STEP, check=True)
    assert (tmp_path / "kernels.ptx").read_text().count(".entry ") == 4


@pytest.mark.cuda
@pytest.mark.parametrize("first", [0, 1], ids=["aligned", "not aligned"])
@pytest.mark.parametrize("number", [torch.float32, torch.bfloat16])
def test_the_library_for_cuda_adds_kernels(extension, number, first):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    importlib.import_module("cuda2_extension").load()
    numbers = torch.randn(2, 10_001) * 4
    numbers[0, :6] = torch.tensor([0.0, -1e30, -88.0, -0.0, 88.0, 1e18])
    x, dy = (row[first:] for row in numbers.to("cuda", number))
    x.requires_grad_()
    exact = x.detach().double().requires_grad_()
    wanted = torch.nn.functional.gelu(exact, approximate="tanh")
    (slope,) = torch.autograd.grad(wanted, exact, dy.double())
    ours = extension.Gelu()(x)
    (our_slope,) = torch.autograd.grad(ours, x, dy)
    bound = 1e-5 if number is torch.float32 else 2**-7
    torch.testing.assert_close(ours.double(), wanted, rtol=bound, atol=bound)
    torch.testing.assert_close(our_slope.double(), slope, rtol=bound, atol=bound)


def test_what_the_operators_do_not_take_is_refused(extension):
    for wrong in (torch.randn(4).double(), torch.randn(4, 4).t()):
        with pytest.raises(RuntimeError, match="x and dy must be contiguous and of float32"):
            torch.ops.step5.gelu(wrong)
    with pytest.raises(RuntimeError, match="must have the same size"):
        torch.ops.step5.gelu_backward(torch.randn(4), torch.randn(5))


def _mlps(extension: ModuleType, **changes: object) -> bool:
    """Whether the plan for a model with the extension has an MLP."""
    frame = importlib.import_module("frame")
    model = frame.stock(1, 64)
    extension.put_in(model)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setattr(extension.Gelu, name, value)
        plan = tfk.plan(model, {"input_ids": torch.arange(32)[None]}, measure=False)
    return "║ mlp " in str(plan)


def test_the_fuser_sees_an_operator_that_has_a_formula_for_other_types(extension):
    assert _mlps(extension)
    assert not _mlps(extension, forward=lambda _self, x: torch.ops.step5.gelu(x))


def test_profiles_are_stored_and_tell_what_the_extension_saves(extension, tmp_path):
    path = tmp_path / "profile.json"
    importlib.import_module("profiles").main(["cpu", "1", "64", "1", "32", str(path)])
    read = json.loads(path.read_text())["steps"]["step5-integration"]
    stock, ours = (read[rung] for rung in ("cpu1_stock", "cpu2_extension"))
    assert ours["calls of operators"] < stock["calls of operators"]
    kept = "kept for the backward pass, MB"
    assert ours[kept] < stock[kept]
