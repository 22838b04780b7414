# SPDX-License-Identifier: MIT
"""GPT-2 as Transformers has it, on a card and in bfloat16."""

from __future__ import annotations

import sys

import card  # noqa: F401  # ends the program where there is none
import frame


def main(arguments: list[str]) -> int:
    return frame.run("cuda1_stock", lambda _model, _tokens: None, arguments, frame.CUDA)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
