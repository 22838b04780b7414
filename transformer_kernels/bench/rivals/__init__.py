# SPDX-License-Identifier: MIT
"""Calls of other libraries, with which the benchmark's cases compare ours; a module per library."""

EPS = 1e-5  # of every norm
