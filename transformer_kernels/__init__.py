# SPDX-License-Identifier: MIT
"""Transformer Kernel Pack: fused transformer kernels, drop-in for PyTorch.

>>> import torch
>>> import transformer_kernels as tfk
>>> norm = tfk.nn.LayerNorm(64)
>>> x, residual = torch.randn(2, 2, 5, 64)
>>> y, total = tfk.functional.add_rms_norm(norm(x), residual, (64,), torch.ones(64))
>>> model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64))
>>> plan = tfk.fuse(model, x)
"""

from . import fpga, functional, levels, models, nn, profile
from ._errors import ArgumentIndexError, ArgumentTypeError, ArgumentValueError
from ._lazy import attributes
from ._version import __version__
from .fuse import OperatorFuser, Plan, fuse, plan, unfuse
from .info import info
from .ops.linear import _tuned

__all__ = [
    "ArgumentIndexError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "OperatorFuser",
    "Plan",
    "__version__",
    "compat",
    "fpga",
    "functional",
    "fuse",
    "graph_plans",
    "info",
    "levels",
    "models",
    "nn",
    "plan",
    "profile",
    "tune_file",
    "tuning",
    "unfuse",
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
        "fuse.backend": ("graph_plans",),
        "tune": ("tuning", "tune_file"),
        "workbench": ("workbench", "validate"),
    },
)
