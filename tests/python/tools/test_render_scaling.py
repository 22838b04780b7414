# SPDX-License-Identifier: MIT
from __future__ import annotations

from pathlib import Path

import pytest

import render_scaling
from transformer_kernels.parallel.scaling import WAYS


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_scaling, "GENERATED", tmp_path)
    render_scaling.write_page()
    text = (tmp_path / "scaling.md").read_text()
    assert "<svg" in text
    for name in WAYS:
        assert text.count(f"║ {name}") == len(render_scaling.COUNTS)
        assert f"| {name} | " in text
    lines = [line for line in text.splitlines() if line.startswith("║ tensor parallel")]
    assert "%" in lines[0]
    assert "%" not in lines[-1]  # there are fewer heads than GPUs
