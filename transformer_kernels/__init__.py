# SPDX-License-Identifier: MIT
"""Transformer Kernel Pack: fused transformer kernels, drop-in for PyTorch.

>>> import torch
>>> import transformer_kernels as tfk
>>> norm = tfk.nn.LayerNorm(64)
>>> x, residual = torch.randn(2, 2, 5, 64)
>>> y, total = tfk.functional.add_rms_norm(norm(x), residual, (64,), torch.ones(64))
"""

from . import fpga, functional, levels, models, nn, profile
from ._errors import ArgumentIndexError, ArgumentTypeError, ArgumentValueError
from ._lazy import attributes
from ._version import __version__
from .info import info
from .ops.linear import _tuned

__all__ = [
    "ArgumentIndexError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "__version__",
    "compat",
    "fpga",
    "functional",
    "info",
    "levels",
    "models",
    "nn",
    "profile",
    "tune_file",
    "tuning",
    "validate",
    "workbench",
]

if _tuned.mode():
    from . import tune

    tune.start()

__getattr__, __dir__ = attributes(
    __name__,
    {
        "compat": ("compat",),
        "tune": ("tuning", "tune_file"),
        "workbench": ("workbench", "validate"),
    },
)
