# SPDX-License-Identifier: MIT
"""Where this package keeps what it measured on the user's machine."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """The folder ``transformer_kernels`` in the user's cache, which may not exist yet."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "transformer_kernels"
