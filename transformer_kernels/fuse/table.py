# SPDX-License-Identifier: MIT
"""The times of sites on this machine, in a file that lasts from one process to the next.

``TFK_FUSE_FILE`` names the file; by default it is ``fuse.json`` in the user's cache. Times of other
machines, numbers of threads, versions and builds stay in it, but do not apply.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from .. import _cache
from .._library import library_build
from .._times import device_name, threads_of
from .._version import __version__

_FORMAT = 2


def file_path() -> Path:
    named = os.environ.get("TFK_FUSE_FILE")
    if named:
        return Path(named)
    return _cache.folder() / "fuse.json"


class Table:
    """The times that apply to a device, by the text that says what was timed."""

    def __init__(self, device: torch.device) -> None:
        self._path = file_path()
        versions = f"{__version__}, kernels {library_build()}, torch {torch.__version__}"
        self._machine = f"{device_name(device)}, {threads_of(device)} threads, {versions}"
        self._times: dict[str, Any] = self._read().get(self._machine, {})
        self._new: dict[str, Any] = {}

    def get(self, what: str) -> Any:
        return self._times.get(what)

    def keep(self, what: str, times: Any) -> None:
        self._times[what] = self._new[what] = times

    def write(self) -> None:
        """Adds what is new to the file."""
        if not self._new:
            return
        machines = self._read()
        machines.setdefault(self._machine, {}).update(self._new)
        text = json.dumps({"format": _FORMAT, "machines": machines}, indent=1)
        with contextlib.suppress(OSError):  # then the times hold for this process alone
            _cache.write(self._path, text)

    def _read(self) -> dict[str, Any]:
        """The file's content; nothing where there is none, or one that was not written here."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            machines = found["machines"] if found["format"] == _FORMAT else {}
            return dict(machines)
        except (OSError, ValueError, KeyError, TypeError):
            return {}
