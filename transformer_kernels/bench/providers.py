# SPDX-License-Identifier: MIT
"""The providers that are measured, and why one may be absent on this machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch

from transformer_kernels import _library, _torch
from transformer_kernels.measure.case import Function

PROVIDERS = (
    "torch", "foreach", "compile", "triton", "math", "cudnn", "flash", "flex", "fa3", "fa4",
    "liger", "quack", "quack_tuned", "cublaslt", "segments", "pyg", "onednn", "llama", "packed",
    "ours",
)  # fmt: skip
COMPILE_MODES = ("default", "max-autotune-no-cudagraphs")


def _needs_library(_: torch.device) -> str | None:
    return _library.missing_reason


def _needs_gpu(device: torch.device) -> str | None:
    return None if device.type == "cuda" else "runs on a GPU only"


def _needs_onednn(device: torch.device) -> str | None:
    if device.type != "cpu":
        return "runs on a CPU only"
    return None if torch.backends.mkldnn.is_available() else "this PyTorch has no oneDNN"


def _needs_llama(device: torch.device) -> str | None:
    from transformer_kernels.bench.rivals import llama

    return llama.why_absent(device)


def _why_not_importable(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # a package beside the wrong torch can raise anything
        return f"not importable ({type(error).__name__}: {error})"
    return None


def _needs_gpu_and(*modules: str) -> Callable[[torch.device], str | None]:
    """Needs a GPU and any one of the modules."""

    def reason(device: torch.device) -> str | None:
        if (missing := _needs_gpu(device)) is not None:
            return missing
        reasons = [_why_not_importable(module) for module in modules]
        return None if None in reasons else reasons[-1]

    return reason


_REASONS: dict[str, Callable[[torch.device], str | None]] = {
    "torch": lambda _: None,
    "foreach": lambda _: None,
    "compile": _torch.why_no_compiler,
    "triton": _needs_gpu_and("triton"),
    "math": lambda _: None,
    "cudnn": _needs_gpu,
    "flash": _needs_gpu,
    "flex": _needs_gpu_and("triton"),
    "fa3": _needs_gpu_and("flash_attn_interface", "fa3_fwd_interface"),
    "fa4": _needs_gpu_and("flash_attn.cute"),
    "liger": _needs_gpu_and("liger_kernel"),
    "quack": _needs_gpu_and("quack"),
    "quack_tuned": _needs_gpu_and("quack"),
    "cublaslt": _needs_gpu,
    "segments": lambda _: None,
    "pyg": lambda _: _why_not_importable("torch_geometric"),
    "onednn": _needs_onednn,
    "llama": _needs_llama,
    "packed": _needs_library,
    "ours": _needs_library,
}


def why_absent(provider: str, device: torch.device) -> str | None:
    """The reason why the provider cannot be measured; None when it can."""
    return _REASONS[provider](device)


class Compiled:
    """Compiles with torch.compile in one mode; each function once per problem."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._functions: dict[Function, Function] = {}

    def __call__(self, function: Function) -> Function:
        if function not in self._functions:
            compiled = torch.compile(function, mode=self._mode, dynamic=False)
            self._functions[function] = compiled
        return self._functions[function]

    def reset(self) -> None:
        """Forgets compiled functions before the next problem: past a limit Dynamo would run them
        eagerly."""
        if self._functions:
            self._functions.clear()
            torch._dynamo.reset()
