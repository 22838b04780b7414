# SPDX-License-Identifier: MIT
"""Optimizers: drop-in for :mod:`torch.optim`, with the same constructors and state_dict.

>>> layer = torch.nn.Linear(64, 64)
>>> optimizer = tfk.optim.AdamW(layer.parameters(), lr=1e-3, max_norm=1.0)
>>> layer(torch.randn(2, 64)).sum().backward()
>>> optimizer.step()
"""

from .adamw import AdamW
from .lion import Lion
from .muon import Muon

__all__ = ["AdamW", "Lion", "Muon"]
