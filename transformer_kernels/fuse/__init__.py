# SPDX-License-Identifier: MIT
"""Fuses models that nobody here wrote: one run is recorded, patterns are found in its dataflow,
each is proven against PyTorch, and modules get derived classes."""

from .fuser import OperatorFuser, fuse, plan, unfuse
from .plan import Plan
from .registry import register
from .site import Refusal, Site

__all__ = ["OperatorFuser", "Plan", "Refusal", "Site", "fuse", "plan", "unfuse"]

register()
