# SPDX-License-Identifier: MIT
"""The version of this package."""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("transformer-kernels")
except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0.0.0+source"
