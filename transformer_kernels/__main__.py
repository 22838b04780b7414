# SPDX-License-Identifier: MIT
"""``python -m transformer_kernels`` is the program ``transformer-kernels``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
