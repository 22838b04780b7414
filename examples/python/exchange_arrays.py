# SPDX-License-Identifier: MIT
"""Hands arrays of CuPy, or of NumPy where there is no GPU, to the kernels and takes results back.

    python examples/python/exchange_arrays.py [--rows N] [--columns N] [--device cpu]

DLPack passes the address, the shape and the device, so nothing is copied: the tensor and the array
are two names of the same memory. CuPy's stream waits for PyTorch's, and PyTorch's for CuPy's,
because each ``from_dlpack`` says which stream its consumer uses.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

import transformer_kernels as tfk
from transformer_kernels.bench.options import pick_device


def array_library(device: torch.device) -> Any:
    """CuPy for a GPU, where it is installed; else NumPy, whose arrays are the CPU's."""
    if device.type == "cuda":
        if importlib.util.find_spec("cupy") is None:
            raise SystemExit("CuPy is missing: pip install -r tools/requirements/cupy.txt")
        return importlib.import_module("cupy")
    return importlib.import_module("numpy")


def address(array: Any) -> int:
    """Where the first element of an array of either library lies."""
    if hasattr(array, "__cuda_array_interface__"):
        return int(array.__cuda_array_interface__["data"][0])
    return int(array.__array_interface__["data"][0])


def layer_norm(library: Any, rows: Any, weight: Any, bias: Any) -> Any:
    """LayerNorm of an array's rows: (rows, columns) in, the same shape and library out."""
    x, w, b = (torch.from_dlpack(array) for array in (rows, weight, bias))
    normalised = tfk.functional.layer_norm(x, (x.shape[-1],), w, b)
    result = library.from_dlpack(normalised)
    # A copy would be a bug of this example, so it says so.
    if address(rows) != x.data_ptr() or address(result) != normalised.data_ptr():
        raise RuntimeError("DLPack has copied an array, expected the same memory")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=768)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parsed = parser.parse_args(arguments)
    library = array_library(pick_device(parsed.device))
    library.random.seed(0)
    rows = library.random.standard_normal((parsed.rows, parsed.columns)).astype("float32")
    weight, bias = library.ones(parsed.columns, "float32"), library.zeros(parsed.columns, "float32")
    result = layer_norm(library, rows, weight, bias)

    centred = rows - rows.mean(-1, keepdims=True)
    expected = centred / library.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    error = float(abs(result - expected).max())
    print(f"{library.__name__} -> PyTorch -> {library.__name__}, {rows.nbytes} bytes, no copy")
    print(f"largest difference from LayerNorm in {library.__name__}: {error:.1e}")
    return 0 if error < 1e-4 else 1


if __name__ == "__main__":
    raise SystemExit(main())
