# SPDX-License-Identifier: MIT
"""The commands of `transformer-kernels` that measure, and those that show what was measured."""
