# SPDX-License-Identifier: MIT
"""Machines that were measured, as files in the user's cache: one for each, of readable JSON, with
the day and the versions by which it was measured."""

from __future__ import annotations

import contextlib
import datetime
import json
from dataclasses import asdict
from pathlib import Path

import torch

from .. import _cache, _times
from ..measure.machine import describe_versions
from .description import Hardware


def kept(device: torch.device | str) -> Hardware | None:
    """A device as :func:`measure_cpu` or :func:`measure_cuda` found it in any process of this user,
    a CPU with as many threads; None where it was not measured, or where the file cannot be read.

    >>> hardware.kept("cpu")  # doctest: +SKIP
    Hardware(name='AMD EPYC, AVX2, 2 threads', ...)
    """
    return kept_as(_times.machine_of(torch.device(device)))


def kept_as(name: str) -> Hardware | None:
    """The machine of this name."""
    try:
        return read(_path(name))
    except (OSError, ValueError):
        return None


def read(path: Path) -> Hardware:
    """The machine of a file as :func:`keep` writes it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is of another kind.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["machine"]
        copies = {int(size): gbps for size, gbps in found.pop("copies").items()}
        return Hardware(**found, copies=copies)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"hardware: {path} is no measured machine: {error!r}") from None


def keep(machine: Hardware) -> None:
    """Writes the file; a folder that cannot be written keeps nothing."""
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    kept = {"date": day, "versions": describe_versions(), "machine": asdict(machine)}
    with contextlib.suppress(OSError):
        _cache.write(_path(machine.name), json.dumps(kept, indent=1))


def _path(name: str) -> Path:
    words = "".join(letter if letter.isalnum() else "_" for letter in name)
    return _cache.folder() / "hardware" / f"{words}.json"
