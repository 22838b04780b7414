# SPDX-License-Identifier: MIT
"""Transformer Kernel Pack as a kernel of the Hugging Face hub.

The Python package lies beside this file, with its libraries. A process has one copy of its ops: if
the package is imported already, this module gives that one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_NAME = "transformer_kernels"


def _package() -> ModuleType:
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    place = Path(__file__).parent / _NAME / "__init__.py"
    spec = importlib.util.spec_from_file_location(_NAME, place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} does not exist, expected the package of the kernel")
    package = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = package  # its modules import each other by this name
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return package


_found = _package()
functional, nn, fuse, unfuse = _found.functional, _found.nn, _found.fuse, _found.unfuse

from . import layers  # noqa: E402  (it reads the package)

__all__ = ["functional", "fuse", "layers", "nn", "unfuse"]
