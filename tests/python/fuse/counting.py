# SPDX-License-Identifier: MIT
"""Counts the calls of a function that a module looks up."""

from __future__ import annotations

from typing import Any

import pytest


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """A list that gets an element at each call of ``owner.name``."""
    made: list[int] = []
    function = getattr(owner, name)

    def called(*given: Any, **more: Any) -> Any:
        made.append(1)
        return function(*given, **more)

    monkeypatch.setattr(owner, name, called)
    return made
