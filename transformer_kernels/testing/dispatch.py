# SPDX-License-Identifier: MIT
"""Records the calls that reach the dispatcher."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class CallsOf(TorchDispatchMode):
    """Records the arguments of every call of one op, in schema order, while it is entered."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self.op:
            self.calls.append(args)
        return func(*args, **(kwargs or {}))
