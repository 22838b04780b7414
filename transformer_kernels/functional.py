# SPDX-License-Identifier: MIT
"""The ops as functions: drop-in for :mod:`torch.nn.functional`, with more by keyword."""

from .ops.norm.layer_norm import add_layer_norm, layer_norm
from .ops.norm.rms_norm import add_rms_norm, rms_norm
from .ops.softmax.softmax import log_softmax, softmax

__all__ = ["add_layer_norm", "add_rms_norm", "layer_norm", "log_softmax", "rms_norm", "softmax"]
