# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from transformer_kernels.ops.decode import _arguments


@pytest.fixture(autouse=True)
def _kernels_run_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are what the kernels have to pass before they run unnamed."""
    monkeypatch.setattr(_arguments, "RUNS_CUDA_UNNAMED", True)
