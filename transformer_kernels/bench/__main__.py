# SPDX-License-Identifier: MIT
import sys

from transformer_kernels.bench.cli import main

sys.exit(main())
