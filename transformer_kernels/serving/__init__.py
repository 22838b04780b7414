# SPDX-License-Identifier: MIT
"""An HTTP server in OpenAI's shape on :class:`transformer_kernels.decode.Engine`.

>>> import torch
>>> from transformer_kernels import serving
>>> def count_up(batch, cache):  # a model that always says the next letter
...     return torch.nn.functional.one_hot((batch.tokens[batch.outputs] + 1) % 128, 128).float()
>>> class Letters:
...     stops = ()
...     def encode(self, text): return list(text.encode())
...     def decode(self, tokens): return bytes(tokens).decode()
>>> cache = tfk.decode.PagedCache(num_layers=1, num_pages=8, num_heads=1, head_dim=8)
>>> engine = tfk.decode.Engine(count_up, cache, detokenize=Letters().decode)
>>> with serving.in_thread(serving.make_app(engine, Letters(), "letters")) as url:
...     url.startswith("http://127.0.0.1:")
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import attributes

if TYPE_CHECKING:
    from .app import Words, make_app
    from .limits import Limits
    from .running import in_thread, is_loopback, run

__all__ = ["Limits", "Words", "in_thread", "is_loopback", "make_app", "run"]

# The command's help needs none of the packages that the extra ``serve`` brings.
_HOMES = {
    "app": ("Words", "make_app"),
    "limits": ("Limits",),
    "running": ("in_thread", "is_loopback", "run"),
}
__getattr__, __dir__ = attributes(__name__, _HOMES)
