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

from . import _times, decode, fpga, functional, levels, models, nn, optim, profile
from ._errors import ArgumentIndexError, ArgumentTypeError, ArgumentValueError
from ._lazy import attributes
from ._version import __version__
from .fuse import OperatorFuser, Plan, fuse, plan, unfuse
from .generation.engine import engine
from .generation.generate import generate
from .info import info
from .models.quantize import quantize
from .ops.linear._kept import repack

__all__ = [
    "ArgumentIndexError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "OperatorFuser",
    "Plan",
    "__version__",
    "autotune",
    "compat",
    "decode",
    "engine",
    "fpga",
    "functional",
    "fuse",
    "generate",
    "graph_plans",
    "hardware",
    "info",
    "levels",
    "models",
    "nn",
    "optim",
    "parallel",
    "plan",
    "profile",
    "quantize",
    "repack",
    "tune_file",
    "tuning",
    "unfuse",
    "validate",
    "workbench",
]

if _times.mode():
    from . import tune

    tune.start()

__getattr__, __dir__ = attributes(
    __name__,
    {
        "compat": ("compat",),
        "fuse.backend": ("graph_plans",),
        "hardware": ("hardware",),
        "parallel": ("parallel",),
        "plans": ("autotune",),
        "tune": ("tuning", "tune_file"),
        "workbench": ("workbench", "validate"),
    },
)
