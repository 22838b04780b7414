# SPDX-License-Identifier: MIT
"""The example of DLPack hands arrays over without a copy: NumPy's here, CuPy's on a GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy
import pytest
import torch

FILE = Path(__file__).parents[3] / "examples" / "python" / "exchange_arrays.py"
specification = importlib.util.spec_from_file_location("exchange_arrays", FILE)
assert specification is not None
assert specification.loader is not None
example = importlib.util.module_from_spec(specification)
specification.loader.exec_module(example)


def test_numpy_arrays_are_shared(capsys):
    assert example.main(["--device", "cpu", "--rows", "7", "--columns", "33"]) == 0
    assert "numpy -> PyTorch -> numpy, 924 bytes, no copy" in capsys.readouterr().out


@pytest.mark.cuda
def test_cupy_arrays_are_shared(capsys):
    pytest.importorskip("cupy")
    assert example.main(["--device", "cuda", "--rows", "7", "--columns", "33"]) == 0
    assert "cupy -> PyTorch -> cupy, 924 bytes, no copy" in capsys.readouterr().out


def test_a_copy_is_noticed(monkeypatch):
    monkeypatch.setattr(example, "address", lambda _: 0)
    row = numpy.ones((1, 8), "float32")
    with pytest.raises(RuntimeError, match="DLPack has copied an array"):
        example.layer_norm(numpy, row, row[0], row[0])


def test_a_cupy_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(example.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"CuPy is missing: pip install -r .*cupy\.txt"):
        example.array_library(torch.device("cuda"))
