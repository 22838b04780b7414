# SPDX-License-Identifier: MIT
"""The patterns, one in each file, in the order in which they are tried."""

from __future__ import annotations

from ._pattern import Pattern
from .norm import NormPattern

ALL: tuple[Pattern, ...] = (NormPattern(),)
