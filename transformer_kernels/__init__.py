# SPDX-License-Identifier: MIT
"""Transformer Kernel Pack: fused transformer kernels, drop-in for PyTorch.

>>> import transformer_kernels as tfk
>>> norm = tfk.nn.LayerNorm(768)
>>> y, s = tfk.functional.add_rms_norm(x, residual, (768,), weight)
"""

from . import fpga, functional, levels, nn
from ._errors import ArgumentIndexError, ArgumentTypeError, ArgumentValueError
from .info import __version__, info

__all__ = [
    "ArgumentIndexError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "__version__",
    "fpga",
    "functional",
    "info",
    "levels",
    "nn",
]
