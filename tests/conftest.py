# SPDX-License-Identifier: MIT
"""Devices, dtypes, and Triton's interpreter where there is no GPU."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import cpu_seconds

os.environ["TFK_TUNE"] = "0"  # what was timed on this machine does not choose what is tested
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Errors by which a test may miss its bound in one draw of its numbers, and not in the next.
_DRAWN_AGAIN = ["^NearMissError", "^VerificationError: relative error"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def pytest_configure(config: pytest.Config) -> None:
    """Each of several processes keeps to its share of the cores."""
    if times := os.environ.get(cpu_seconds.VARIABLE):
        config.pluginmanager.register(cpu_seconds.CpuSeconds(config, Path(times)))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, torch.get_num_threads() // processes))
    if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
        _round_bfloat16_in_triton()


def _round_bfloat16_in_triton() -> None:
    """Triton's interpreter cuts float32 off to bfloat16; hardware rounds, and so do the tests."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(x: Any, from_dtype: Any, to_dtype: Any, mode: Any) -> Any:
        if (from_dtype, to_dtype) != (tl.float32, tl.bfloat16):
            return convert(x, from_dtype, to_dtype, mode)
        return torch.tensor(x).bfloat16().view(torch.uint16).numpy()

    interpreter._convert_float = rounded


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", DEVICES)
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", DTYPES, ids=dtype_name)


def pytest_report_header() -> str | None:
    if torch.cuda.is_available():
        return None
    return "PyTorch sees no CUDA device: tests that need one are deselected"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=_DRAWN_AGAIN))
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if _is_left_out(item, config) else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def _is_left_out(item: pytest.Item, config: pytest.Config) -> bool:
    """Without a CUDA device its tests, two in five of all, are left out rather than skipped; those
    of several devices run where `-m` names them."""
    if item.get_closest_marker("cuda") is None:
        return _is_interpreted(item) and not _is_drawn(item)
    is_asked_for = "distributed" in config.option.markexpr
    is_distributed = item.get_closest_marker("distributed") is not None
    return not torch.cuda.is_available() or (is_distributed and not is_asked_for)


def _is_interpreted(item: pytest.Item) -> bool:
    """Whether the test is by its name one of Triton's kernels, and runs in the interpreter, where
    they take a hundred times as long."""
    return os.environ.get("TRITON_INTERPRET") == "1" and "triton" in item.nodeid.rpartition("/")[2]


def _is_drawn(item: pytest.Item) -> bool:
    """Whether the test is one of the third that the run's seed draws: of a run by one process, all
    are."""
    seed = os.environ.get("TFK_TEST_SEED") or os.environ.get("PYTEST_XDIST_TESTRUNUID")
    is_shared = "PYTEST_XDIST_WORKER" in os.environ
    return not is_shared or zlib.crc32(f"{seed} {item.nodeid}".encode()) % 3 == 0


@pytest.fixture(autouse=True)
def fresh_seed(request: pytest.FixtureRequest) -> None:
    """New inputs on every run and in every test, and where a test runs once more after a near miss
    (transformer_kernels/testing/tolerance.py); the run's seed is printed when a test fails."""
    seed = os.environ.get("TFK_TEST_SEED") or torch.seed() % 2**31
    draw = getattr(request.node, "execution_count", 1)
    again = f" draw {draw}" if draw > 1 else ""
    own = zlib.crc32(f"{seed} {request.node.nodeid}{again}".encode())
    torch.manual_seed(own)
    random.seed(own)
    print(f"TFK_TEST_SEED={seed}")
