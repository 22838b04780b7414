# SPDX-License-Identifier: MIT
"""GPT-2 after `tfk.fuse`, on a card and in bfloat16."""

from __future__ import annotations

import sys

import card  # noqa: F401  # ends the program where there is none
import cpu3_fused
import frame


def main(arguments: list[str]) -> int:
    return frame.run("cuda3_fused", cpu3_fused.put_in, arguments, frame.CUDA)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
