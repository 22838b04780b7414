# SPDX-License-Identifier: MIT
"""benchmarks/parallel.py: tiny sizes on two ranks give a row for each way, and a result file."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from transformer_kernels.measure import schema
from transformer_kernels.testing.processes import run_together, unable

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "parallel.py"
OURS = {
    "tp": "parallelize", "ring": "ring_attention", "norm": "all_reduce_residual_norm",
    "ddp": "ours, DDP", "experts": "expert_parallel",
}  # fmt: skip


def every_part() -> None:
    spec = importlib.util.spec_from_file_location("benchmark_parallel", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        result = script.main(["--tiny", "--seconds", "0", "--samples", "2", "--json", str(path)])
        if dist.get_rank() == 0:
            assert schema.load(path) == result
    found = {(row.part, row.provider): row for row in result.parallel}
    for part, provider in OURS.items():
        row = found[part, provider]
        assert row.ranks == dist.get_world_size(), part
        assert row.of_one is not None or part == "norm", part
        assert row.apart is None or row.apart < 1e-5, part
    assert {skip.provider for skip in result.skipped} <= {"context_parallel"}


@pytest.mark.distributed
def test_two_ranks(device: str, tmp_path: Path) -> None:
    if reason := unable(2, device):
        pytest.skip(reason)
    run_together([every_part], 2, tmp_path, device)
