# SPDX-License-Identifier: MIT
"""timm without torchvision.

timm imports torchvision for data sets and transforms, which no model here uses. torchvision's wheel
on PyPI is built for CUDA and does not load beside PyTorch for CPUs, so a stand-in is there while
timm is imported, and only then: transformers must not take it for the library.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from unittest.mock import MagicMock

from torch import nn

NAMES = ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets", ".utils",
         ".models", ".models.feature_extraction")  # fmt: skip


def stand_in(name: str) -> ModuleType:
    module = MagicMock(name=name)
    module.__path__ = []
    module.FrozenBatchNorm2d = type("FrozenBatchNorm2d", (nn.Module,), {})
    return module


def import_timm() -> bool:
    """Imports timm; False where it is not installed."""
    if importlib.util.find_spec("timm") is None:
        return False
    names = [f"torchvision{name}" for name in NAMES]
    if importlib.util.find_spec("torchvision") is None:
        sys.modules.update({name: stand_in(name) for name in names})
    try:
        importlib.import_module("timm")
    finally:
        for name in names:
            if isinstance(sys.modules.get(name), MagicMock):
                del sys.modules[name]
    return True
