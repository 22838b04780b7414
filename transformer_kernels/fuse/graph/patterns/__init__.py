# SPDX-License-Identifier: MIT
"""The patterns of graphs, in the order in which they are tried."""

from __future__ import annotations

from ._pattern import Pattern, Place
from .attention import AttentionPattern
from .loss import LossPattern
from .norms import DropoutPattern, NormPattern, SumNormPattern
from .products import GatedMLPPattern, LinearActPattern, MLPPattern
from .rope import RopePattern

ALL: tuple[Pattern, ...] = (
    AttentionPattern(),
    GatedMLPPattern(),
    MLPPattern(),
    LinearActPattern(),
    SumNormPattern("dropout_norm", drops=True),
    SumNormPattern("sum_norm", drops=False),
    NormPattern(),
    DropoutPattern(),
    LossPattern(),
    RopePattern(),
)

__all__ = ["ALL", "Pattern", "Place"]
