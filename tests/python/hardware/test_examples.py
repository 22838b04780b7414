# SPDX-License-Identifier: MIT
"""The examples in the docstrings of the model and its simulators."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("", ".proposals", ".proposals.array", ".proposals.cache", ".proposals.units")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"transformer_kernels.hardware{name}")
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
