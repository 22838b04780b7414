# SPDX-License-Identifier: MIT
"""Benchmarks of every op, compared with its rivals and with the machine's memory bandwidth.

Start with `transformer-kernels bench`. `import transformer_kernels` imports nothing from here.
"""
