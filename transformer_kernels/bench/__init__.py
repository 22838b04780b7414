# SPDX-License-Identifier: MIT
"""Benchmarks: every op against its rivals and against the memory ceiling of the machine.

`transformer-kernels bench` (or `python -m transformer_kernels.bench`) is the way in. Nothing here
is imported by `import transformer_kernels`.
"""
