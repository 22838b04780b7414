# SPDX-License-Identifier: MIT
"""Shows progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

_PLAIN_LINES = 10


class Progress:
    """Shows how far a run is: `with Progress("measuring", total) as p: p.advance("softmax")`."""

    def __init__(self, label: str, total: int, quiet: bool = False) -> None:
        self._label = label
        self._total = max(total, 1)
        self._done = 0
        self._bar = None if quiet else _rich_bar()
        self._plain = self._bar is None and not quiet
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total, detail="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, detail: str = "") -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, detail=detail)
        elif self._plain and self._is_due():
            print(f"{self._label}: {self._done}/{self._total}  {detail}", flush=True)

    def _is_due(self) -> bool:
        """Whether another tenth is done."""
        step = max(1, self._total // _PLAIN_LINES)
        return self._done % step == 0 or self._done == self._total


def _rich_bar() -> Any:
    if not sys.stdout.isatty():
        return None
    try:
        from rich import progress
    except ImportError:
        return None
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[detail]}"),
    )
