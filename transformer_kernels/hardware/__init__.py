# SPDX-License-Identifier: MIT
"""A machine as a model: how long an op takes, what bounds it, and what another machine would give.

A prediction needs a :class:`Plan`, what a call asks for, and a :class:`Hardware`, what a machine
offers. Both are numbers, so no device is needed:

>>> from transformer_kernels import hardware
>>> card = hardware.DATASHEETS["H100"]
>>> norm = hardware.Plan(bytes=2 * 65536 * 768 * 2)  # a LayerNorm in bfloat16 reads x, writes y
>>> hardware.predict(norm, card).bound
'memory'
>>> faster = hardware.WHAT_IFS["memory twice as fast"](card)
>>> hardware.predict(norm, faster).us < hardware.predict(norm, card).us
True

A CPU has caches and a few rates more, which :func:`fitted` finds from the times of ops.
``transformer-kernels analyze`` puts predictions beside what was measured.
"""

from .cpu_fit import Measured, cpu_of_results, fitted, left_out
from .datasheets import DATASHEETS, sheet_of
from .description import Hardware, like
from .fit import of_results
from .kept import kept, kept_as, read
from .measure import measure_cpu
from .measure_card import measure_cuda
from .model import Plan, Prediction, predict
from .what_if import WHAT_IFS

__all__ = [
    "DATASHEETS",
    "WHAT_IFS",
    "Hardware",
    "Measured",
    "Plan",
    "Prediction",
    "cpu_of_results",
    "fitted",
    "kept",
    "kept_as",
    "left_out",
    "like",
    "measure_cpu",
    "measure_cuda",
    "of_results",
    "predict",
    "read",
    "sheet_of",
]
