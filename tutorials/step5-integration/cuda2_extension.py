# SPDX-License-Identifier: MIT
"""GPT-2 with the operator of extension.cpp as its activation, and the kernels of extension.cu."""

from __future__ import annotations

import functools
import sys

import card  # noqa: F401  # ends the program where there is none
import compiled
import cpu2_extension
import frame
import torch


@functools.cache
def load() -> None:
    """Adds kernels to the operators, whose schemas, shapes and gradients suit every device."""
    cpu2_extension.load()
    torch.ops.load_library(compiled.library("extension.cu"))
    cpu2_extension.KERNELS.update({("cuda", torch.float32), ("cuda", torch.bfloat16)})


def main(arguments: list[str]) -> int:
    load()
    return frame.run("cuda2_extension", cpu2_extension.put_in, arguments, frame.CUDA)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
