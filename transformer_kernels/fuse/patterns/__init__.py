# SPDX-License-Identifier: MIT
"""The patterns, one in each file, in the order in which they are tried."""

from __future__ import annotations

from ._pattern import Pattern
from .activation import ActivationPattern
from .attention import AttentionPattern
from .dropout import DropoutPattern
from .dropout_norm import DropoutNormPattern
from .eager_attention import EagerAttentionPattern
from .embedding import EmbeddingPattern
from .experts import ExpertsPattern
from .gated_mlp import GatedMLPPattern
from .linear import LinearPattern
from .linear_then_act import LinearThenActPattern
from .loss import LossPattern
from .mlp import MLPPattern
from .norm import NormPattern
from .qk_norm import QKNormPattern
from .rope import RopePattern
from .siblings import SiblingsPattern
from .skip_logits import SkipLogitsPattern
from .sum_norm import SumNormPattern

ALL: tuple[Pattern, ...] = (
    MLPPattern("mlp", 2),
    MLPPattern("linear_act", 1),
    GatedMLPPattern(),
    ExpertsPattern(),
    NormPattern(),
    ActivationPattern(),
    EmbeddingPattern(),
    DropoutPattern(),
    AttentionPattern(),
    EagerAttentionPattern(),
    RopePattern(),
    QKNormPattern(),
    SiblingsPattern(),
    LinearThenActPattern(),
    LinearPattern(),
    SumNormPattern(),
    DropoutNormPattern(),
    LossPattern(),
    SkipLogitsPattern(),
)
