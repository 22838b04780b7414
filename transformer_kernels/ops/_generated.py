# SPDX-License-Identifier: MIT
"""Python that is written out where looping over arguments would cost more than the call."""

from __future__ import annotations

import linecache
from typing import Any


def run_source(source: str, file: str, scope: dict[str, Any] | None = None) -> dict[str, Any]:
    """The names that ``source`` defines; tracebacks and debuggers show it as ``file``."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {} if scope is None else scope
    exec(compile(source, file, "exec"), names)
    return names
