# SPDX-License-Identifier: MIT
"""The models of these tests are small, and their calls have few rows: sites run our code from the
same few rows on whatever would pay. Each test has measured times of its own."""

from __future__ import annotations

import pytest

from transformer_kernels.fuse import floors

ROWS = 32


@pytest.fixture(autouse=True)
def rows_of_tests(monkeypatch):
    late = ("attention", "eager_attention", "qk_norm", "sum_norm")
    monkeypatch.setattr(floors, "_CPU", dict.fromkeys(late, (ROWS, ROWS)))
    monkeypatch.setattr(floors, "_PRODUCTS", ROWS)
    monkeypatch.setattr(floors, "_CACHED_PRODUCTS", ROWS)


@pytest.fixture(autouse=True)
def times_of_tests(monkeypatch, tmp_path):
    monkeypatch.setenv("TFK_FUSE_FILE", str(tmp_path / "fuse.json"))
