# SPDX-License-Identifier: MIT
"""Where this package keeps what it measured on the user's machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def folder() -> Path:
    """The folder ``transformer_kernels`` in the user's cache, which may not exist yet."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "transformer_kernels"


def write(path: Path, text: str) -> None:
    """Replaces a file in one step, so that no process reads half of it; makes its folder.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as made:
        written = Path(made) / path.name
        written.write_text(text, encoding="utf-8")
        written.replace(path)
