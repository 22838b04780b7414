# SPDX-License-Identifier: MIT
"""Loads the native library and registers ops.

A *raw* op is one kernel call. Its schema and its CPU and CUDA kernels are C++; its fake kernel and
its reference formula are Python. The formula serves every device that has no kernel. Raw ops have
no autograd formula, which keeps a call short; the modules in ``ops/`` differentiate them. Without
the native library the same ops are defined here, and only the formula runs.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from ._errors import ArgumentTypeError, ArgumentValueError
from ._torch import has_kernel, is_defined

NAMESPACE = "transformer_kernels"
BACKENDS = ("auto", "cuda", "cpu", "triton", "fpga", "reference")
BUILD_HINT = "build it with `make build`, or name a built one in TFK_LIBRARY"

_fragment = torch.library.Library(NAMESPACE, "FRAGMENT")
_log_dispatch = "dispatch" in os.environ.get("TFK_LOG", "")


def library_path() -> Path:
    override = os.environ.get("TFK_LIBRARY")
    suffix = "dylib" if sys.platform == "darwin" else "so"
    beside_package = Path(__file__).parent / "lib" / f"libtransformer_kernels_torch.{suffix}"
    return Path(override) if override else beside_package


def library_build() -> str:
    """Tells the builds of the library apart, for times that hold for one of them alone."""
    path = library_path()
    if not path.is_file():
        return "no kernels"
    files = sorted(path.parent.glob(f"libtransformer_kernels*{path.suffix}")) or [path]
    return " ".join(f"{file.stat().st_size}@{file.stat().st_mtime_ns}" for file in files)


def _open(path: Path) -> None:
    """Loads the library into the process.

    It needs PyTorch's libraries by their plain names. Debian puts versions into the names, and has
    plain ones as links in ``torch/lib``: then the library is loaded from a folder of links to all
    of them, since the loader looks beside it."""
    try:
        torch.ops.load_library(str(path))
    except OSError:
        path = path.resolve()
        links = [*Path(torch.__file__).parent.glob("lib/lib*"), *path.parent.glob("lib*")]
        with tempfile.TemporaryDirectory() as folder:
            for file in links:
                Path(folder, file.name).symlink_to(file)
            ctypes.CDLL(str(Path(folder, path.name)))


def _load() -> str | None:
    """Loads the native library; returns why it cannot be used, or None when it is loaded."""
    path = library_path()
    if not path.is_file():
        if os.environ.get("TFK_LIBRARY"):
            raise ImportError(f"TFK_LIBRARY names {path}, which does not exist")
        return f"{path} does not exist; {BUILD_HINT}"
    _open(path)
    return None


missing_reason = _load()
has_kernels = missing_reason is None
if missing_reason is not None:
    warnings.warn(
        f"transformer_kernels runs PyTorch formulas instead of kernels: {missing_reason}",
        RuntimeWarning,
        stacklevel=2,
    )


# A library built without CUDA registers no kernels for it.
has_cuda_kernels = has_kernels and has_kernel(f"{NAMESPACE}::softmax_forward", "CUDA")


def have_kernels_for(x: torch.Tensor) -> bool:
    """Whether the native library is loaded and has kernels for the device of ``x``."""
    return (has_kernels and x.is_cpu) or (has_cuda_kernels and x.is_cuda)


def logs_dispatch() -> bool:
    return _log_dispatch


def log_dispatch(line: str) -> None:
    if _log_dispatch:
        print(f"[tfk] {line}", file=sys.stderr)


def log_copy(reason: str, made: Any, of: Any) -> None:
    """Logs ``reason`` if ``made``, which was to be a view of ``of``, has memory of its own."""
    if _log_dispatch and isinstance(made, torch.Tensor) and made.data_ptr() != of.data_ptr():
        log_dispatch(f"{reason}: copied")


_said: set[str] = set()  # warnings about formulas that were given already


def _say_formula(name: str, arguments: Iterable[Any]) -> None:
    """Says that a formula runs because there is no kernel. It warns once per device, or once per op
    where the device has kernels for other ops, and writes a line of the log for each call."""
    log_dispatch(f"{name}: the reference formula runs, no kernel for this device")
    device = next((x.device.type for x in arguments if isinstance(x, torch.Tensor)), "cpu")
    if device in ("cpu", "meta"):  # the CPU's warning is given when the package is loaded
        return
    what = "PyTorch formulas"
    if missing_reason:
        why = missing_reason
    elif device != "cuda":
        why = "there are kernels for cpu and cuda"
    elif not has_cuda_kernels:
        why = "the library in use was built without CUDA"
    else:
        what, why = f"the PyTorch formula of {name}", "there is no such kernel yet"
    text = f"transformer_kernels runs {what} instead of kernels on {device}: {why}"
    if text not in _said:
        _said.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _require_triton(op: str, x: torch.Tensor) -> None:
    if importlib.util.find_spec("triton") is None:
        raise ArgumentValueError(f"{op}: backend is 'triton', expected an installed one")
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ArgumentValueError(
            f"{op}: backend is 'triton', expected one that serves a tensor on {x.device}"
            " (TRITON_INTERPRET=1 lets Triton's interpreter do so)"
        )


def require_backend(op: str, backend: str, x: torch.Tensor) -> None:
    """Raises where ``backend`` is unknown or cannot serve ``x``."""
    if not isinstance(backend, str):
        raise ArgumentTypeError(f"{op}: backend is {backend!r}, expected a str")
    if backend not in BACKENDS:
        raise ArgumentValueError(
            f"{op}: backend is {backend!r}, expected one of {', '.join(map(repr, BACKENDS))}"
        )
    if backend == "triton":
        _require_triton(op, x)
    if backend not in ("cpu", "cuda", "fpga"):
        return
    if missing_reason is not None:
        raise ArgumentValueError(
            f"{op}: backend is {backend!r}, expected 'reference' ({missing_reason})"
        )
    if x.device.type != ("cpu" if backend == "fpga" else backend):
        raise ArgumentValueError(
            f"{op}: backend is {backend!r}, expected one that serves a tensor on {x.device}"
        )
    if backend == "cuda" and not has_cuda_kernels:
        raise ArgumentValueError(
            f"{op}: backend is 'cuda', expected 'auto' or 'reference' (the library in use was built"
            " without CUDA)"
        )


def _is_registered(qualified: str) -> bool:
    """Whether the library in use has the op: a library older than the package may lack it."""
    if not has_kernels:
        return False
    found = is_defined(qualified)
    if not found:
        warnings.warn(
            f"some ops run PyTorch formulas instead of kernels: {library_path()} is older than the"
            f" package; {BUILD_HINT}",
            RuntimeWarning,
            stacklevel=2,
        )
    return found


def raw_op(schema: str, *, reference: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Registers the Python half of the C++ op with this schema; returns the op's overload."""
    name = schema.partition("(")[0]

    def formula(*args: Any, **kwargs: Any) -> Any:
        _say_formula(name, args)
        return reference(*args, **kwargs)

    return _python_half(schema, formula, fake)


def check_op(schema: str, check: Callable[..., None]) -> Any:
    """Registers the Python half of the C++ op that only checks the arguments of another: ``check``
    serves tensors that C++ cannot read. Returns the op's overload."""
    return _python_half(schema, check, check)


def _python_half(schema: str, formula: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    name = schema.partition("(")[0]
    qualified = f"{NAMESPACE}::{name}"
    if not _is_registered(qualified):
        _fragment.define(schema)
    torch.library.register_fake(qualified, fake, lib=_fragment)
    _fragment.impl(name, formula, "CompositeExplicitAutograd")
    return getattr(getattr(torch.ops, NAMESPACE), name).default


@functools.cache
def c_function(name: str) -> Any:
    """A function of C of the native library, which takes pointers and integers; None where there is
    no such function."""
    return getattr(ctypes.CDLL(str(library_path())), name, None) if has_kernels else None


def direct(op: Any) -> Any:
    """The C++ half of a raw op's overload. Eager calls use it: the Python half only costs time."""
    return op._op


def public_op(
    schema: str,
    *,
    impl: Callable[..., Any],
    fake: Callable[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
    library: torch.library.Library = _fragment,
) -> Any:
    """Defines a differentiable op that stays one node in a graph."""
    op = composite_op(library, schema, impl, fake)
    torch.library.register_autograd(op.name(), backward, setup_context=setup_context, lib=library)
    return op


def composed_op(schema: str, impl: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Defines an op that is composed of other ops of ours and is called from Python."""
    return composite_op(_fragment, schema, impl, fake)


def composite_op(
    library: torch.library.Library,
    schema: str,
    impl: Callable[..., Any],
    fake: Callable[..., Any],
) -> Any:
    """Defines an op that is implemented in Python alone, for every device."""
    name = schema.partition("(")[0]
    library.define(schema)
    library.impl(name, impl, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{library.ns}::{name}", fake, lib=library)
    return getattr(getattr(torch.ops, library.ns), name).default
