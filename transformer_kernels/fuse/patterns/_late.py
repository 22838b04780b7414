# SPDX-License-Identifier: MIT
"""Results that are computed when somebody computes with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

ASKED = "_tfk_asked"  # of a module, while its results may wait

_QUESTIONS = frozenset(("__get__", "dim", "is_floating_point", "numel", "size"))


def while_asked(
    modules: Sequence[Any], forward: Callable[..., Any], args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """Calls ``forward``, during which results of these modules may wait."""
    for module in modules:
        module.__dict__[ASKED] = True
    try:
        return forward(*args, **kwargs)
    finally:
        for module in modules:
            module.__dict__.pop(ASKED, None)


class Late(Tensor):
    """A result that has shape and dtype, and is made of what it knows. Whatever computes with it
    gets the true tensor; what reads memory past PyTorch's functions fails."""

    WHY: str  # what it is and what helps, for the error
    _tfk_computed: Tensor | None

    def made(self) -> Tensor:
        """Computes the true tensor."""
        raise NotImplementedError

    def computed(self) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            if self._tfk_computed is None:
                self._tfk_computed = self.made()
            return self._tfk_computed

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        true = torch.utils._pytree.tree_map_only(Late, Late.computed, (args, kwargs or {}))
        return func(*true[0], **true[1])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"fuse: {func} takes {cls.WHY}")
