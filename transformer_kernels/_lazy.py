# SPDX-License-Identifier: MIT
"""Loads the attributes of a package on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def attributes(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes ``__getattr__`` and ``__dir__`` of a package that imports its modules on first use.

    Args:
        homes: for each module, the names that it defines; its own name stands for the module
            itself.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f".{home_of[name]}", package)
        return module if name == home_of[name] else getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names
