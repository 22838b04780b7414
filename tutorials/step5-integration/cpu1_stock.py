# SPDX-License-Identifier: MIT
"""GPT-2 as Transformers has it: the model before any change.

Its activation is written as eight operators. Each reads and writes a tensor four times as wide as
the residual stream, and autograd keeps several of these until the backward pass.
"""

from __future__ import annotations

import sys

import frame


def main(arguments: list[str]) -> int:
    return frame.run("cpu1_stock", lambda _model, _tokens: None, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
