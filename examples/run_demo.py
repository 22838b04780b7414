# SPDX-License-Identifier: MIT
"""Runs the demo: `python examples/run_demo.py --help` has its options.

    python examples/run_demo.py --batch-size 4 --seq-len 256 --d-model 256 --profile-memory --plot

It is the command `transformer-kernels demo`.
"""

import sys

from transformer_kernels import cli

if __name__ == "__main__":
    sys.exit(cli.main(["demo", *sys.argv[1:]]))
