# SPDX-License-Identifier: MIT
"""Text from models: :func:`transformer_kernels.generate`, tokenizers, and ``chat``."""
