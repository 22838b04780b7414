# SPDX-License-Identifier: MIT
"""The rows of docs/migration.md: a call of another library, ours, and what differs.

A test executes ``ours`` of every row and compares it with ``expected``, the same in PyTorch's own
operations in float64. Both are expressions over the tensors of ``tensors``. A row of a module names
its inputs: ``expected`` is then a module that loads the state_dict of ours, or a function of ours
and the inputs. Where a row has no numbers, ``expected`` is a function that judges the result.
"""

from .apex import APEX
from .flash_attn import FLASH_ATTN
from .liger import LIGER
from .pytorch import TORCH
from .row import Library, Row, tensors
from .teaching import COMPAT
from .transformer_engine import TE
from .xformers import XFORMERS

__all__ = ["COMPAT", "LIBRARIES", "Library", "Row", "tensors"]

LIBRARIES = (TORCH, LIGER, FLASH_ATTN, APEX, XFORMERS, TE, COMPAT)
