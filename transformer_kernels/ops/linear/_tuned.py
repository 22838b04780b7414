# SPDX-License-Identifier: MIT
"""Times of linear layers' products on this machine, and the file that stores them.

Products are timed only on request: by ``transformer-kernels tune``, by
:func:`transformer_kernels.tuning`, or with ``TFK_TUNE=1``. From then on, in every process of the
user, the times choose between our product and PyTorch's, and on CUDA for each product of a layer
the fastest among these and cuBLASLt's algorithms. With ``TFK_TUNE=0`` rules choose.
"""

from __future__ import annotations

import functools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import _cache
from ..._errors import ArgumentValueError
from ..._library import library_build
from ..._processor import cpu_instruction_sets, cpu_name
from ..._version import __version__

_FORMAT = 1
_MODES = {"": None, "0": False, "1": True}
_BROKEN = (OSError, ValueError, TypeError, KeyError, AttributeError)


class Product(NamedTuple):
    """The key of a measured product. Its result has ``rows`` rows and ``columns`` columns, and each
    number is a sum of ``terms`` products."""

    device: str
    threads: int  # PyTorch's threads; 0 where the device is not a CPU
    dtype: str
    rows: int
    terms: int
    columns: int
    by_columns: bool  # whether the weight is stored as (terms, columns)
    activated: bool
    gradients: str  # the gradients wanted: "", "x", "weight" or "x weight"


# Values of a route: one of these, or the number of one of cuBLASLt's algorithms.
OURS, TORCH = -1, -2
_ROUTE_WORDS = {OURS: "ours", TORCH: "torch"}


class Routes(NamedTuple):
    """The route of each product of a layer."""

    y: int = OURS
    dx: int = OURS
    dweight: int = OURS

    def __str__(self) -> str:
        named = self._asdict().items()
        return ", ".join(f"{name} {_ROUTE_WORDS.get(route, route)}" for name, route in named)


class Routed(NamedTuple):
    """The time of a call whose products have routes, in microseconds."""

    us: float
    routes: Routes


class Times(NamedTuple):
    """Times of a call with its gradients, in microseconds."""

    ours: float
    torch: float
    routed: Routed | None = None

    @property
    def fastest(self) -> str:
        """``"ours"``, ``"torch"`` or ``"routed"``."""
        if self.routed is not None and self.routed.us < min(self.ours, self.torch):
            return "routed"
        return "ours" if self.ours <= self.torch else "torch"

    def __str__(self) -> str:
        alone = f"{self.ours:.1f} us here, PyTorch's {self.torch:.1f}"
        return alone if self.routed is None else f"{alone}, by routes {self.routed.us:.1f}"


@functools.cache
def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {cpu_instruction_sets()[0]}"


def threads_of(device: torch.device) -> int:
    return torch.get_num_threads() if device.type == "cpu" else 0


# ---- the file -----------------------------------------------------------------------------------


def file_path() -> Path:
    named = os.environ.get("TFK_TUNE_FILE")
    if named:
        return Path(named)
    return _cache.folder() / "tune.json"


# Times of other versions and builds stay in the file, but do not apply.
_VERSIONS = {"package": __version__, "kernels": library_build(), "torch": torch.__version__}


def _times(record: dict[str, Any]) -> tuple[Product, Times]:
    dict(record["versions"])
    product, times = Product(**record["product"]), Times(**record["us"])
    routed = _routed(record.get("routed"))
    found = (times.ours, times.torch, *(() if routed is None else (routed.us,)))
    if not all(isinstance(t, (int, float)) and 0 < t < math.inf for t in found):
        raise ValueError(f"a time is {found}, expected microseconds")
    return product, times._replace(routed=routed)


def _routed(record: dict[str, Any] | None) -> Routed | None:
    """Reads routes; None in records from before there were routes."""
    if record is None:
        return None
    routes = Routes(**record["routes"])
    if not all(type(route) is int and route >= TORCH for route in routes):
        raise ValueError(f"routes are {tuple(routes)}, expected integers of {TORCH} and more")
    return Routed(record["us"], routes)


def _record(product: Product, times: Times) -> dict[str, Any]:
    found = {
        "versions": _VERSIONS,
        "product": product._asdict(),
        "us": {"ours": times.ours, "torch": times.torch},
    }
    if times.routed is not None:
        us, routes = times.routed
        found["routed"] = {"us": us, "routes": routes._asdict()}
    return found


def _read(path: Path) -> list[dict[str, Any]]:
    """Reads the file's records. A file of another kind is warned about once, and counts as
    empty."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != _FORMAT:
            raise ValueError(f"format is {found['format']!r}, expected {_FORMAT}")
        records: list[dict[str, Any]] = found["records"]
        dict(_times(record) for record in records)
    except FileNotFoundError:
        return []
    except _BROKEN as error:
        _warn(f"{path} is not read ({type(error).__name__}: {error}): rules choose products")
        return []
    return records


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    """Replaces the file in one step, so that no process reads half of it."""
    text = json.dumps({"format": _FORMAT, "records": records}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_text(text, encoding="utf-8")
            written.replace(path)
    except OSError as error:
        _warn(f"{path} is not written ({error}): what was timed holds for this process alone")


@functools.cache  # once for each text
def _warn(text: str) -> None:
    warnings.warn(f"tune: {text}", RuntimeWarning, stacklevel=2)


def _size(product: Product) -> tuple[int, ...]:
    return product.columns, product.terms


class Table:
    """The times of these versions by product, from a file that other processes write too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.times: dict[Product, Times] = dict(
            _times(record) for record in _read(path) if record["versions"] == _VERSIONS
        )
        self.sizes = {_size(product) for product in self.times}
        self.choices: dict[Any, Any] = {}  # that these times led to, by all that decided them

    def keep(self, product: Product, times: Times) -> None:
        self.times[product] = times
        self.sizes.add(_size(product))
        self.choices.clear()
        new = _record(product, times)
        same = ("versions", "product")
        others = [old for old in _read(self._path) if any(old[key] != new[key] for key in same)]
        _write(self._path, [*others, new])


@functools.cache
def table() -> Table:
    return Table(file_path())


# ---- what is asked for --------------------------------------------------------------------------

Measure = Callable[[Tensor, Tensor, Product], Times]  # takes x and weight


class _Asked:
    measure: Measure | None = None  # measures products that are not in the table
    forced: str | Routes | None = None  # who multiplies during measurements


@functools.cache
def mode() -> bool | None:
    """The setting of TFK_TUNE: True times new products, False ignores the table, None is the
    default."""
    text = os.environ.get("TFK_TUNE", "")
    if text not in _MODES:
        raise ArgumentValueError(f"TFK_TUNE is {text!r}, expected 0 or 1")
    return _MODES[text]


def measure_with(measure: Measure | None) -> None:
    _Asked.measure = measure


@contextmanager
def forcing(who: str | Routes) -> Iterator[None]:
    before, _Asked.forced = _Asked.forced, who
    try:
        yield
    finally:
        _Asked.forced = before


def forced() -> str | Routes | None:
    return _Asked.forced


def measure() -> Measure | None:
    return _Asked.measure


def sizes_of_weights() -> Collection[tuple[int, ...]]:
    """The sizes (columns, terms) of weights about which times may be known."""
    return () if mode() is False else table().sizes


_choices_by_rules: dict[Any, Any] = {}


def choices() -> dict[Any, Any]:
    """The choices of this process, by all that decided them (_choice.py)."""
    return _choices_by_rules if mode() is False else table().choices


def is_measuring() -> bool:
    """Whether products of all sizes are being timed, or will be at their first call."""
    return _Asked.measure is not None or _Asked.forced is not None
