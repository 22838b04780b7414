# SPDX-License-Identifier: MIT
"""Results kept by name, which later runs on this machine are compared with."""

from __future__ import annotations

import re
from pathlib import Path

from transformer_kernels import _cache
from transformer_kernels.measure import schema
from transformer_kernels.measure.schema import Result

_NAME = re.compile(r"\w[\w.-]*")


def path_of(name: str) -> Path:
    """The file of a baseline.

    Raises:
        ValueError: the name would leave the folder.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"baseline is {name!r}, expected a name of letters, digits, _, . and -")
    return _cache.folder() / "baselines" / f"{name}.json"


def load(name: str) -> Result:
    path = path_of(name)
    if not path.is_file():
        kept = ", ".join(sorted(file.stem for file in path.parent.glob("*.json"))) or "none"
        raise ValueError(
            f"baseline is {name!r}, expected one that `bench --save-baseline` kept: {kept}"
        )
    return schema.load(path)


def save(result: Result, name: str) -> Path:
    path = path_of(name)
    schema.save(result, path)
    return path
