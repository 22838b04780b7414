# SPDX-License-Identifier: MIT
"""Every row of the migration tables runs, and gives what PyTorch gives in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import migration
import render_migration
import transformer_kernels as tfk
from migration import LIBRARIES, Library, Row
from setup_env import ROOT

ROWS = [(library, row) for library in LIBRARIES for row in library.rows]


def _wide(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _evaluate(text: str, given: dict[str, Any]) -> Any:
    return eval(text, {"torch": torch, "nn": nn, "F": F, "tfk": tfk, **given})


def _called(module: Any, inputs: str, given: dict[str, Any]) -> Any:
    return _evaluate(f"module({inputs})", {**given, "module": module})


def _of_module(ours: Any, row: Row, given: dict[str, Any], wide: dict[str, Any]) -> tuple[Any, Any]:
    """Results of our module with random parameters, and of what it stands for."""
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.uniform_(-0.5, 0.5)
    same = copy.deepcopy(ours).double()
    expected = _evaluate(row.expected, wide)
    if not isinstance(expected, nn.Module):
        return _called(ours, row.inputs, given), _called(
            lambda *args, **named: expected(same, *args, **named), row.inputs, wide
        )
    expected.double().load_state_dict(same.state_dict())
    return _called(ours, row.inputs, given), _called(expected, row.inputs, wide)


@pytest.mark.parametrize(("library", "row"), ROWS, ids=[row.theirs for _, row in ROWS])
def test_row(library: Library, row: Row) -> None:
    given = migration.tensors(library.layout)
    wide = {name: _wide(x) for name, x in given.items()}
    found = _evaluate(row.ours, given)
    if row.inputs:
        found, expected = _of_module(found, row, given, wide)
    else:
        expected = _evaluate(row.expected, wide)
    if callable(expected):
        assert expected(found)
        return
    found, expected = ([*y] if isinstance(y, tuple) else [y] for y in (found, expected))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=2e-5)


def test_every_table_is_on_the_page() -> None:
    page = (ROOT / "docs/migration.md").read_text()
    for library in LIBRARIES:
        assert f"_generated/{library.page}" in page
        shown = render_migration.table(library)
        assert all(row.ours.replace("|", "\\|") in shown for row in library.rows)
        assert all(line.count(" | ") == 2 for line in shown.splitlines() if line.startswith("| "))


def test_every_name_of_compat_has_a_row() -> None:
    shown = " ".join(row.ours for row in migration.COMPAT.rows)
    assert all(f"tfk.compat.{name}(" in shown for name in tfk.compat.__all__)
