# SPDX-License-Identifier: MIT
"""Runs products by cuBLASLt, with the fastest here of the algorithms that its heuristics offer.

The library is called through ctypes, in the copy that PyTorch loaded. Objects live as long as the
process, because a run has few products.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache, lru_cache, partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer_kernels.measure import cold
from transformer_kernels.measure.case import UnsupportedError, dtype_name
from transformer_kernels.measure.timing import Call, GraphTimer, Stopwatch, interleave

WORKSPACE_BYTES = 32 << 20
WANTED = 16  # algorithms
_CALLS, _ROUNDS = 4, 9  # the fewest calls of a sample, and its repetitions

# Constants of cublasLt.h and library_types.h.
_COMPUTE_32F, _R_32F = 68, 0
_TYPES = {torch.float32: _R_32F, torch.float16: 2, torch.bfloat16: 14}
_TRANSA, _TRANSB = 3, 4
_MAX_WORKSPACE_BYTES = 1


class Layout(NamedTuple):
    """The layout of a matrix stored by columns, as cuBLASLt reads memory."""

    rows: int
    cols: int
    leading: int


class Layouts(NamedTuple):
    """The layouts of d = a b; a flag says that a factor is to be transposed."""

    a: Layout
    b: Layout
    d: Layout
    transpose_a: bool
    transpose_b: bool


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def _transposed(matrix: Tensor) -> tuple[Layout, bool]:
    """The layout of the memory read by columns, and whether it holds the transpose."""
    rows, cols = matrix.shape
    if matrix.stride(1) == 1:
        return Layout(cols, rows, matrix.stride(0)), False
    if matrix.stride(0) == 1:
        return Layout(rows, cols, matrix.stride(1)), True
    raise UnsupportedError("cublaslt takes matrices by rows or by columns")


def layouts(x: Tensor, y: Tensor) -> Layouts:
    """The layouts of x y by rows, which is (y^T x^T) by columns."""
    a, transpose_a = _transposed(y)
    b, transpose_b = _transposed(x)
    rows, cols = len(x), y.shape[1]
    return Layouts(a, b, Layout(cols, rows, cols), transpose_a, transpose_b)


def library_name() -> str:
    if torch.version.cuda is None:
        raise UnsupportedError("cublaslt: this PyTorch has no CUDA, and no libcublasLt")
    return f"libcublasLt.so.{torch.version.cuda.partition('.')[0]}"


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    name = library_name()
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError as error:
        raise UnsupportedError(f"cublaslt: PyTorch has not loaded {name}") from error


def _call(function: str, *arguments: Any) -> None:
    status = getattr(_library(), f"cublasLt{function}")(*arguments)
    if status != 0:
        raise RuntimeError(f"cublasLt{function} gave status {status}")


def _made(function: str, *arguments: Any) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _call(function, ctypes.byref(made), *arguments)
    return made


def _set(function: str, of: ctypes.c_void_p, attribute: int, value: Any) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    _call(function, of, ctypes.c_int(attribute), ctypes.byref(value), size)


@cache
def _handle(_device: torch.device) -> ctypes.c_void_p:
    return _made("Create")


def _layout(of: Layout, dtype: torch.dtype) -> ctypes.c_void_p:
    sizes = (ctypes.c_uint64(of.rows), ctypes.c_uint64(of.cols), ctypes.c_int64(of.leading))
    return _made("MatrixLayoutCreate", ctypes.c_int(_TYPES[dtype]), *sizes)


class _Product:
    """A product of matrices with these layouts; sums are in float32."""

    def __init__(self, of: Layouts, dtype: torch.dtype, device: torch.device) -> None:
        if dtype not in _TYPES:
            raise UnsupportedError(f"cublaslt is not asked for {dtype_name(dtype)}")
        self._handle = _handle(device)
        self._desc = _made("MatmulDescCreate", ctypes.c_int(_COMPUTE_32F), ctypes.c_int(_R_32F))
        for attribute, transpose in ((_TRANSA, of.transpose_a), (_TRANSB, of.transpose_b)):
            _set("MatmulDescSetAttribute", self._desc, attribute, ctypes.c_int32(transpose))
        self._a, self._b, self._d = (_layout(layout, dtype) for layout in (of.a, of.b, of.d))
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._shape = (of.d.cols, of.d.rows)
        self._fastest: Heuristic | None = None

    def offered(self) -> list[Heuristic]:
        """The algorithms in cuBLASLt's order, which it believes to be the best first."""
        preference = _made("MatmulPreferenceCreate")
        workspace = ctypes.c_size_t(WORKSPACE_BYTES)
        _set("MatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE_BYTES, workspace)
        found, count = (Heuristic * WANTED)(), ctypes.c_int()
        _call(
            "MatmulAlgoGetHeuristic", self._handle, self._desc, self._a, self._b, self._d, self._d,
            preference, ctypes.c_int(WANTED), found, ctypes.byref(count),
        )  # fmt: skip
        _call("MatmulPreferenceDestroy", preference)
        return [heuristic for heuristic in found[: count.value] if heuristic.state == 0]

    def run(self, heuristic: Heuristic, x: Tensor, y: Tensor) -> Tensor:
        out = x.new_empty(self._shape)
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        memory = [ctypes.c_void_p(t.data_ptr()) for t in (x, y, out, self._workspace)]
        stream = ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream)
        _call(
            "Matmul", self._handle, self._desc, ctypes.byref(one), memory[1], self._a, memory[0],
            self._b, ctypes.byref(zero), memory[2], self._d, memory[2], self._d,
            ctypes.byref(heuristic.algo), memory[3], ctypes.c_size_t(WORKSPACE_BYTES), stream,
        )  # fmt: skip
        return out

    def fastest(self, x: Tensor, y: Tensor) -> Heuristic:
        """The fastest algorithm, timed once, as the run times its providers."""
        if self._fastest is None:
            moved = x.nbytes + y.nbytes + self._shape[0] * self._shape[1] * x.itemsize
            extra = cold.sets_of(moved, x.device) - 1
            sets = [(x, y), *((x.clone(), y.clone()) for _ in range(extra))]
            self._fastest = self._first_of(self.offered(), sets)
        return self._fastest

    def _first_of(
        self, heuristics: list[Heuristic], sets: list[tuple[Tensor, Tensor]]
    ) -> Heuristic:
        timer, watches = GraphTimer(), dict[str, Stopwatch]()
        for i, heuristic in enumerate(heuristics):
            pairs = islice(cycle(sets), max(len(sets), _CALLS))
            try:
                watches[str(i)] = timer.stopwatch([partial(self.run, heuristic, *p) for p in pairs])
            except RuntimeError:  # offered, but refused when called
                continue
        if not watches:
            raise UnsupportedError("cublaslt offers no algorithm")
        taken = interleave(watches, timer, 0, rounds=_ROUNDS)
        return heuristics[int(min(taken, key=lambda name: taken[name].median))]


_product = cache(_Product)


def fastest_product(x: Tensor, y: Tensor) -> Call:
    """The product x y of (M, K) and (K, N), each stored by rows or by columns."""
    product = _product(layouts(x, y), x.dtype, x.device)
    return partial(product.run, product.fastest(x, y), x, y)
