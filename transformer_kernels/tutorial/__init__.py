# SPDX-License-Identifier: MIT
"""The ladders of `tutorials/`: their rungs, built and run, and their tables."""
