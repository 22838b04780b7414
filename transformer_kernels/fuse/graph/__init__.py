# SPDX-License-Identifier: MIT
"""Rewrites graphs of torch.compile: patterns are found in the graph's dataflow, each is proven
against the operations that it replaces, and the graph then calls this package's functions."""
