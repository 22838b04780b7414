# SPDX-License-Identifier: MIT
"""The calls of other libraries that the benchmark's cases compare ours with, a module a library."""

EPS = 1e-5  # of all norms
