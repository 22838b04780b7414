# SPDX-License-Identifier: MIT
"""GPT-2 after `tfk.fuse`, which finds this place and the others by itself.

With `--plan` it prints what the fuser finds in the stock model, and what in the model of rung 2.
"""

from __future__ import annotations

import copy
import sys

import cpu2_extension
import frame

import transformer_kernels as tfk


def put_in(model, tokens) -> None:
    tfk.fuse(model, {"input_ids": tokens, "labels": tokens})


def main(arguments: list[str]) -> int:
    if "--plan" not in arguments:
        return frame.run("cpu3_fused", put_in, arguments)
    cpu2_extension.load()
    model = frame.stock(2, 128)
    tokens = frame.torch.arange(64)[None]
    changed = copy.deepcopy(model)
    cpu2_extension.put_in(changed)
    for title, one in (("stock", model), ("with the extension", changed)):
        print(f"{title}:\n{tfk.plan(one, {'input_ids': tokens, 'labels': tokens})}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
