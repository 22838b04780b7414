# SPDX-License-Identifier: MIT
"""A GPT-2 trained stock and with the kernels put in, then every op against PyTorch.

`python -m transformer_kernels.demo`, or `make demo` in a source tree.
"""
