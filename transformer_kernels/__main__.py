# SPDX-License-Identifier: MIT
"""``python -m transformer_kernels info`` prints what this installation can do."""

import sys

from .info import info


def main(arguments: list[str]) -> int:
    if arguments != ["info"]:
        print("usage: python -m transformer_kernels info", file=sys.stderr)
        return 2
    print(info())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
