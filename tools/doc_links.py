# SPDX-License-Identifier: MIT
"""Addresses of names in PyTorch's and Python's documentation.

They follow from the names, so that documentation that is built without a network has the links too.
"""

from __future__ import annotations

import builtins

_TORCH, _PYTHON = "https://docs.pytorch.org/docs/stable", "https://docs.python.org/3/library"
_SHORT = {
    "Tensor": "torch.Tensor",
    "nn.Module": "torch.nn.Module",
    "nn.Parameter": "torch.nn.parameter.Parameter",
    "Any": "typing.Any",
    "Path": "pathlib.Path",
    **{name: f"collections.abc.{name}" for name in ("Callable", "Iterable", "Mapping", "Sequence")},
}  # names as annotations have them
_TORCH_PAGES = {
    "torch.Tensor": "tensors",
    "torch.dtype": "tensor_attributes",
    "torch.device": "tensor_attributes",
    "torch.layout": "tensor_attributes",
}


def address(name: str, is_module: bool = False) -> str | None:
    """The page and place where PyTorch or Python documents a name."""
    name = _SHORT.get(name, name)
    if name in _TORCH_PAGES:
        return f"{_TORCH}/{_TORCH_PAGES[name]}.html#{name}"
    if name.startswith("torch."):
        page = name.removeprefix("torch.") if is_module else f"generated/{name}"
        return f"{_TORCH}/{page}.html"
    if isinstance(kind := getattr(builtins, name, None), type):
        if issubclass(kind, BaseException):
            return f"{_PYTHON}/exceptions.html#{name}"
        page = "functions" if kind in (int, float, bool) else "stdtypes"
        return f"{_PYTHON}/{page}.html#{name}"
    if name == "None":
        return f"{_PYTHON}/constants.html#None"
    module, _, _ = name.rpartition(".")
    known = module in ("collections.abc", "typing", "pathlib", "os")
    return f"{_PYTHON}/{module}.html#{name}" if known else None
