# SPDX-License-Identifier: MIT
"""The ops. Each family has a folder with the declarations of its ops, their formulas and the public
functions; ``_declare.py`` describes declarations.

``*_triton.py`` holds a family's kernels once more, in Triton.
"""
