# SPDX-License-Identifier: MIT
"""One module an op, ``<family>/<op>.py``: the function, its formula, fakes and derivatives.

``<op>_triton.py`` beside it has the same kernels in Triton.
"""
