# SPDX-License-Identifier: MIT
"""Products of quantised weights by llama.cpp: ggml's CPU backend, in llama-cpp-python's package.

The weight's numbers are our own, in blocks of ``q8_0`` and ``q4_0`` with a scale in float16 each.
ggml rounds x to 8 bits, so it is compared in bfloat16 only.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.measure.case import UnsupportedError
from transformer_kernels.ops.linear._quantized import numbers_of

_BLOCK = 32
_FLOAT32, _TYPES = 0, {8: 8, 4: 2}  # ggml's numbers of float32, and of q8_0 and q4_0 by their bits
_ROOM = 64 << 20  # bytes of a graph beside its tensors
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


class _Parameters(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool),
    )  # fmt: skip


_FUNCTIONS: dict[str, tuple[Any, ...]] = {  # result and arguments
    "ggml_init": (_POINTER, _Parameters),
    "ggml_free": (None, _POINTER),
    "ggml_new_tensor_2d": (_POINTER, _POINTER, _INT, _LONG, _LONG),
    "ggml_mul_mat": (_POINTER, _POINTER, _POINTER, _POINTER),
    "ggml_new_graph": (_POINTER, _POINTER),
    "ggml_build_forward_expand": (None, _POINTER, _POINTER),
    "ggml_get_data": (_POINTER, _POINTER),
    "ggml_backend_graph_compute": (_INT, _POINTER, _POINTER),
    "ggml_backend_cpu_init": (_POINTER,),
    "ggml_backend_cpu_set_n_threads": (None, _POINTER, _INT),
}


@functools.cache
def _ggml() -> dict[str, Any]:
    """ggml's functions by name, without importing llama-cpp-python, which prints."""
    found = importlib.util.find_spec("llama_cpp")
    if found is None or found.origin is None:
        raise ImportError("no module named llama_cpp")
    folder = Path(found.origin).parent / "lib"
    names = ("libggml-base.so", "libggml-cpu.so")
    libraries = [ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL) for name in names]
    functions: dict[str, Any] = {}
    for name, (result, *arguments) in _FUNCTIONS.items():
        own = getattr(next(one for one in libraries if hasattr(one, name)), name)
        own.restype, own.argtypes = result, arguments
        functions[name] = own
    functions["backend"] = functions["ggml_backend_cpu_init"]()
    return functions


def why_absent(device: torch.device) -> str | None:
    """The reason why it cannot run; None where it can."""
    if device.type != "cpu":
        return "runs on a CPU only"
    try:
        _ggml()
    except (ImportError, OSError, StopIteration) as error:
        return f"not importable ({type(error).__name__}: {error})"
    return None


def blocks(packed: Tensor, scales: Tensor) -> Tensor:
    """The weight in ggml's blocks: bytes (N, K / 32, bytes of a block)."""
    numbers = numbers_of(packed).unflatten(-1, (-1, _BLOCK))
    a_group = numbers.shape[1] // scales.shape[1]
    heads = scales.half().repeat_interleave(a_group, -1).unsqueeze(-1).view(torch.uint8)
    if packed.dtype is torch.uint8:
        low, high = (numbers + 8).to(torch.uint8).chunk(2, -1)
        return torch.cat((heads, low | (high << 4)), -1)
    return torch.cat((heads, numbers.view(torch.uint8)), -1)


class Product:
    """``x @ weight.T``, in a graph of ggml's of one node."""

    def __init__(self, x: Tensor, packed: Tensor, scales: Tensor) -> None:
        if x.dtype is not torch.bfloat16:
            raise UnsupportedError("llama.cpp rounds x to 8 bits: it is compared in bfloat16")
        of, weight = _ggml(), blocks(packed, scales).contiguous()
        columns, terms = len(weight), weight.shape[1] * _BLOCK
        floats = 4 * len(x) * (terms + columns)
        self._x = x.float().contiguous()
        self._context = of["ggml_init"](
            _Parameters(2 * weight.nbytes + floats + _ROOM, None, False)
        )
        kind = _TYPES[4 if packed.dtype is torch.uint8 else 8]
        left = of["ggml_new_tensor_2d"](self._context, kind, terms, columns)
        right = of["ggml_new_tensor_2d"](self._context, _FLOAT32, terms, len(x))
        product = of["ggml_mul_mat"](self._context, left, right)
        self._graph = of["ggml_new_graph"](self._context)
        of["ggml_build_forward_expand"](self._graph, product)
        ctypes.memmove(of["ggml_get_data"](left), weight.data_ptr(), weight.nbytes)
        ctypes.memmove(of["ggml_get_data"](right), self._x.data_ptr(), self._x.nbytes)
        memory = (ctypes.c_float * (columns * len(x))).from_address(of["ggml_get_data"](product))
        self._y = torch.frombuffer(memory, dtype=torch.float32).view(len(x), columns)

    def __call__(self) -> Tensor:
        of = _ggml()
        of["ggml_backend_cpu_set_n_threads"](of["backend"], torch.get_num_threads())
        of["ggml_backend_graph_compute"](of["backend"], self._graph)
        return self._y.to(torch.bfloat16)

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            _ggml()["ggml_free"](self._context)
