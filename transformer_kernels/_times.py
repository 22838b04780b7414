# SPDX-License-Identifier: MIT
"""The file of times that were measured on this machine, which C++ reads (``csrc/core/times.h``).

Times of other versions and builds stay in the file, but do not apply.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import torch

from . import _cache
from ._errors import ArgumentValueError
from ._library import c_function, library_build
from ._processor import cpu_instruction_sets, cpu_name
from ._version import __version__

_HEADER = "transformer_kernels times 2"
_MODES = {"": None, "0": False, "1": True}
_LONGEST = 4096  # of a message


@functools.cache
def mode() -> bool | None:
    """The setting of TFK_TUNE: True times new products, False ignores the file, None is the
    default."""
    text = os.environ.get("TFK_TUNE", "")
    if text not in _MODES:
        raise ArgumentValueError(f"TFK_TUNE is {text!r}, expected 0 or 1")
    return _MODES[text]


def file_path() -> Path:
    named = os.environ.get("TFK_TUNE_FILE")
    return Path(named) if named else _cache.folder() / "tune.txt"


@functools.cache
def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {cpu_instruction_sets()[0]}"


def threads_of(device: torch.device) -> int:
    """PyTorch's threads; 0 where the device is not a CPU."""
    return torch.get_num_threads() if device.type == "cpu" else 0


def machine_of(device: torch.device) -> str:
    """The machine, in the file's words."""
    threads = threads_of(device)
    return f"{device_name(device)}, {threads} threads" if threads else device_name(device)


@functools.cache
def _versions() -> str:
    return f"package {__version__}, kernels {library_build()}, torch {torch.__version__}"


class Kept:
    """Facts about the file that this process knows."""

    any: bool = False  # whether times apply
    lines: ClassVar[dict[str, str]] = {}  # that this process timed, by their first fields
    stamp: int = 0  # a number that changes with the times


def read() -> None:
    """Makes C++ read the file anew, and forgets what could not be written to it. A file of another
    kind is warned about once, and counts as empty."""
    Kept.lines = {}
    _tell(Path() if mode() is False else file_path(), file_path())


def _tell(path: Path, named: Path) -> bool:
    """Makes C++ read ``path``, which stands for the file ``named``; returns whether it could."""
    function = c_function("tfk_read_times")
    if function is None:
        return False
    text = ctypes.create_string_buffer(_LONGEST)
    machine = machine_of(torch.device("cpu")) if path.is_file() else ""
    names = (str(path) if path.name else "", _versions(), machine)
    found = function(*(name.encode() for name in names), text, _LONGEST)
    Kept.any = found > 0
    Kept.stamp += 1
    if found < 0:
        _warn(f"{named} is not read ({text.value.decode()}): rules choose products")
    return bool(found >= 0)


def keep(machine: str, timed: str, times: Mapping[str, float]) -> None:
    """Adds times in microseconds, by name, to the file and to what C++ knows."""
    start, rest = _line_of(machine, timed, times)
    Kept.lines[start] = rest
    _change()


def drop(machine: str, timed: str) -> None:
    """Removes times, if there are any, from the file and from what C++ knows."""
    start, _ = _line_of(machine, timed, {})
    if Kept.lines.pop(start, None) is not None or any(
        line.startswith(start) for line in _lines(file_path())
    ):
        _change(without=start)


@contextlib.contextmanager
def instead(machine: str, timed: str, times: Mapping[str, float]) -> Iterator[None]:
    """Makes C++ know these times alone."""
    before = Kept.any
    start, rest = _line_of(machine, timed, times)
    try:
        _tell_lines([start + rest], file_path())
        yield
    finally:
        if before:
            _tell_lines(_merged(file_path()), file_path())
        else:
            _tell(Path(), file_path())


def _line_of(machine: str, timed: str, times: Mapping[str, float]) -> tuple[str, str]:
    """The fields of a line that name what was timed, and its times."""
    start = f"{_versions()}\t{machine}\t{timed}\t"
    return start, "\t".join(f"{name}={us}" for name, us in times.items())


def _change(without: str = "\n") -> None:
    """Writes the file anew, with the lines that this process timed and what others wrote."""
    path = file_path()
    with _alone(path):
        lines = [line for line in _merged(path) if not line.startswith(without)]
        _tell_lines(lines, path)  # what cannot be written holds for this process
        _write(path, _text(lines))


def _merged(path: Path) -> list[str]:
    starts = tuple(Kept.lines)
    others = [line for line in _lines(path) if not (starts and line.startswith(starts))]
    return others + [start + rest for start, rest in Kept.lines.items()]


def _text(lines: list[str]) -> str:
    return "\n".join([_HEADER, *lines, ""])


def _tell_lines(lines: list[str], named: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / named.name
        own.write_text(_text(lines), encoding="utf-8")
        _tell(own, named)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps other processes from changing the file meanwhile, by a lock on its folder, where the
    system has such locks."""
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):  # of file systems without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def records() -> Iterator[tuple[str, str, dict[str, float]]]:
    """The file's machines, what was timed on them, and times by name, of these versions."""
    for line in _lines(file_path()):
        versions, machine, timed, *times = line.split("\t")
        if versions == _versions():
            pairs = (time.rsplit("=", 1) for time in times)
            yield machine, timed, {name: float(us) for name, us in pairs}


def _lines(path: Path) -> list[str]:
    """The file's lines behind the first; none of a file of another kind."""
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    return lines if header == _HEADER and _tell(path, path) else []


def _write(path: Path, text: str) -> None:
    try:
        _cache.write(path, text)
    except OSError as error:
        _warn(f"{path} is not written ({error}): what was timed holds for this process alone")


@functools.cache  # once for each text
def _warn(text: str) -> None:
    warnings.warn(f"tune: {text}", RuntimeWarning, stacklevel=2)


read()
