# SPDX-License-Identifier: MIT
"""Trains GPT-2 with stock PyTorch and with our kernels, then times every op against PyTorch.

Run it as `transformer-kernels demo`, or `make demo` in a source tree.
"""
