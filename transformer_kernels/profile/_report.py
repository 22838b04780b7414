# SPDX-License-Identifier: MIT
"""The output formats of every report: text, a dict, records for a table, scalars for
TensorBoard."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..measure.table import ABSENT, box

Headings = Sequence[tuple[str, int]]


class Report:
    """The base of the reports, which are dataclasses."""

    def text(self) -> str:
        """The report as text for a terminal."""
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per row, which ``pandas.DataFrame`` accepts."""
        raise NotImplementedError

    def scalars(self) -> dict[str, float]:
        """The figures whose development over time is worth a curve, by name."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """The whole report as a dict that JSON can hold."""
        return dataclasses.asdict(cast(Any, self))

    def to_tensorboard(self, writer: Any, step: int = 0) -> None:
        """Adds the scalars to a ``SummaryWriter``, or to a new one for the folder ``writer``."""
        write_scalars(writer, self.scalars(), step)

    def __str__(self) -> str:
        return self.text()


def write_scalars(writer: Any, scalars: Mapping[str, float], step: int) -> None:
    if hasattr(writer, "add_scalar"):
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        return
    with _summary_writer(os.fspath(writer)) as own:
        write_scalars(own, scalars, step)


def _summary_writer(folder: str) -> Any:
    try:
        found: Any = importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise ImportError(
            "to_tensorboard: the package tensorboard is absent, expected it"
            " (pip install 'transformer-kernels[profile]')"
        ) from error
    return found.SummaryWriter(folder)


def flat(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]


def table(title: str, subtitle: str, headings: Headings, body: Sequence[Sequence[str]]) -> str:
    return box(title, subtitle, headings, body)


def microseconds(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.0f}" if value >= 1000 else f"{value:.2f}"


def percent(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:.1f} %"


def mega(count: float | None) -> str:
    if count is None:
        return ABSENT
    value = count / 1e6
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def number(value: float | None, form: str = ".1f") -> str:
    return ABSENT if value is None else format(value, form)
