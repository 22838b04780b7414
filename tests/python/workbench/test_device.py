# SPDX-License-Identifier: MIT
"""Properties of devices, and devices without kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import transformer_kernels as tfk
from transformer_kernels import _library
from transformer_kernels.measure import machine
from transformer_kernels.workbench import device as devices_module

PACKAGE_ROOT = str(Path(tfk.__file__).parents[1])
needs_library = pytest.mark.skipif(not _library.has_kernels, reason="the library is not built")


def _python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": PACKAGE_ROOT, **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_the_cpu_is_that_of_the_benchmark() -> None:
    found, cpu = tfk.workbench.properties("cpu"), torch.device("cpu")
    described = machine.describe_machine(cpu)
    assert (found.device, found.name, found.units) == (cpu, described.cpu_name, described.cores)
    assert found.memory_bytes == machine.device_memory_bytes(cpu)
    assert tfk.workbench.devices()[0] == found
    assert found.name in str(found)
    assert "cuda" not in found.backends


@needs_library
def test_the_instruction_set_is_the_one_in_use() -> None:
    found = tfk.workbench.properties("cpu")
    asked = os.environ.get("TFK_CPU_ISA") or found.instruction_sets[-1]
    assert (found.in_use, found.runs) == (asked, f"kernels ({asked})")
    assert found.has_kernels


def test_without_a_library_formulas_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "has_kernels", False)
    found = tfk.workbench.properties("cpu")
    assert (found.runs, found.has_kernels, found.instruction_sets) == (
        "PyTorch formulas",
        False,
        (),
    )


@pytest.mark.parametrize("named", ["nowhere", "cuda:99", "xpu:99", 3.5, []])
def test_what_is_no_device_here_is_refused(named: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^properties: device is .*, expected "):
        tfk.workbench.properties(named)


class _Cards:
    """Two GPUs, the second with more free memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cards = [torch.device("cuda", i) for i in range(2)]
        cpu = tfk.workbench.properties("cpu")
        found = [
            tfk.workbench.DeviceProperties(c, "GPU", 1, 8, ("sm_90",), "sm_90", ()) for c in cards
        ]
        free = {cards[0]: 100, cards[1]: 200, torch.device("cpu"): 1000}
        monkeypatch.setattr(devices_module, "devices", lambda: (cpu, *found))
        monkeypatch.setattr(machine, "free_memory_bytes", free.__getitem__)


def test_a_device_is_chosen_by_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _Cards(monkeypatch)
    assert tfk.workbench.choose_device() == torch.device("cuda", 1)
    assert tfk.workbench.choose_device(200) == torch.device("cuda", 1)
    assert tfk.workbench.choose_device(201) == torch.device("cpu")
    with pytest.raises(ValueError, match=r"^choose_device: memory_bytes is 1001, expected at most"):
        tfk.workbench.choose_device(1001)


def test_a_device_without_kernels_is_said_once() -> None:
    pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this PyTorch makes no devices in Python")
    result = _python(str(Path(__file__).with_name("other_device.py")))
    assert result.returncode == 0, result.stderr
    why = _library.missing_reason or "there are kernels for cpu and cuda"
    expected = f"transformer_kernels runs PyTorch formulas instead of kernels on npu: {why}"
    assert result.stdout.strip() == repr([expected])


@pytest.mark.parametrize(
    ("has_others", "said"),
    [
        (False, "PyTorch formulas instead of kernels on cuda: .* was built without CUDA"),
        (True, "the PyTorch formula of gelu instead of kernels on cuda: there is no such kernel"),
    ],
)
def test_a_kernel_that_cuda_lacks_is_said_once(
    has_others: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_library, "_said", set())
    monkeypatch.setattr(_library, "missing_reason", None)
    monkeypatch.setattr(_library, "has_cuda_kernels", has_others)
    with FakeTensorMode():
        x = torch.empty(4, device="cuda")
    with pytest.warns(RuntimeWarning, match=said):
        _library._say_formula("gelu", (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _library._say_formula("gelu", (x,))
    if has_others:
        with pytest.warns(RuntimeWarning, match="formula of silu"):
            _library._say_formula("silu", (x,))


def test_formulas_on_the_cpu_and_without_data_are_not_news(recwarn: Any) -> None:
    for device in ("cpu", "meta"):
        _library._say_formula("gelu", (torch.empty(2, device=device),))
    assert not recwarn.list


@pytest.mark.cuda
def test_a_card() -> None:
    found = tfk.workbench.properties("cuda")
    assert found.name == torch.cuda.get_device_name(0)
    assert found.has_kernels == _library.has_cuda_kernels
    assert found.units > 0
    assert tfk.workbench.choose_device().type == ("cuda" if found.has_kernels else "cpu")
    tfk.workbench.synchronize("cuda")
