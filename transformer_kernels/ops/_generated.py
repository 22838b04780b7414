# SPDX-License-Identifier: MIT
"""Runs generated Python source, used where a loop over arguments would take longer than the
call."""

from __future__ import annotations

import linecache
from typing import Any


def run_source(source: str, file: str, scope: dict[str, Any] | None = None) -> dict[str, Any]:
    """Executes ``source`` and returns the names that it defines; tracebacks show it as ``file``."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {} if scope is None else scope
    exec(compile(source, file, "exec"), names)
    return names
