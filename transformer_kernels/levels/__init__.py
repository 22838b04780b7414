# SPDX-License-Identifier: MIT
"""One transformer block in five levels, from plain PyTorch to hand-written kernels.

>>> block = tfk.levels.Block("ours", dim=64, num_heads=4)
>>> block.load_state_dict(tfk.levels.Block("torch", dim=64, num_heads=4).state_dict())
<All keys matched successfully>

Read the levels in this order: ``native.py``, ``scripted.py``, ``compiled.py``, ``fused.py``,
``triton.py``, ``ours.py``. Each begins with what it saves compared with the one before.
"""

from ._level import Affine, Level, Weights
from .block import LEVELS, Block, find_level

__all__ = ["LEVELS", "Affine", "Block", "Level", "Weights", "find_level"]
