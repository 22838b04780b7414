# SPDX-License-Identifier: MIT
"""A folder a family: declarations of its ops (``_declare.py``), formulas, public functions.

``*_triton.py`` has the same kernels in Triton.
"""
