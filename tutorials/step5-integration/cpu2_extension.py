# SPDX-License-Identifier: MIT
"""GPT-2 with the operator of extension.cpp as its activation: one pass, and one in the gradient."""

from __future__ import annotations

import functools
import sys

import compiled
import frame
import torch

KERNELS = {("cpu", torch.float32)}  # devices and types; a library that has others adds them


@functools.cache  # a second declaration of the same operators would end the process
def load() -> None:
    """Compiles and loads the library, and tells PyTorch what C++ does not: shapes and gradients."""
    torch.ops.load_library(compiled.library("extension.cpp"))

    # torch.compile and torch.export trace with tensors that have no data.
    torch.library.register_fake("step5::gelu", torch.empty_like)
    torch.library.register_fake("step5::gelu_backward", lambda dy, _x: torch.empty_like(dy))

    def keep(ctx, inputs, output) -> None:  # noqa: ARG001  # by name
        ctx.save_for_backward(*inputs)

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return torch.ops.step5.gelu_backward(dy.contiguous(), x)

    torch.library.register_autograd("step5::gelu", backward, setup_context=keep)


class Gelu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x.device.type, x.dtype) not in KERNELS:
            return torch.nn.functional.gelu(x, approximate="tanh")
        return torch.ops.step5.gelu(x.contiguous())


def put_in(model: torch.nn.Module, _tokens: object = None) -> None:
    """Replaces the activation of each block; parameters and `state_dict` stay as they are."""
    for block in model.transformer.h:
        block.mlp.act = Gelu()


def main(arguments: list[str]) -> int:
    load()
    return frame.run("cpu2_extension", put_in, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
