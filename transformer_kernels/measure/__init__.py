# SPDX-License-Identifier: MIT
"""Shared by the benchmarks, the profilers and the tuner: timers, statistics, the machine and its
ceilings, cases that are verified before they are timed, and results as files and tables. `import
transformer_kernels` imports nothing from here.

Nothing here is imported by `import transformer_kernels`.
"""
