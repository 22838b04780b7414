# SPDX-License-Identifier: MIT
"""A device that PyTorch supports and the library has no kernels for, made of PrivateUse1 in Python.

Its tensors are in the CPU's memory, where PyTorch's operators run; ops of other namespaces are left
to the dispatcher. Running this file with ``python -m`` or ``runpy`` prints what our ops do there.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "npu"
_on_cpu: dict[int, tuple[Tensor, Tensor]] = {}  # the device's tensor, and its memory


def to_device(memory: Tensor) -> Tensor:
    x = torch._C._acc.create_empty_tensor(memory.shape, memory.dtype)
    _on_cpu[id(x)] = (x, memory)
    return x


def to_cpu(x: Any) -> Any:
    return _on_cpu[id(x)][1] if isinstance(x, Tensor) and x.device.type == NAME else x


def run_on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs = {name: "cpu" if name == "device" else x for name, x in kwargs.items()}
    given, named = tree_map(to_cpu, (args, kwargs))
    results = op(*given, **named)
    return tree_map(lambda x: to_device(x) if isinstance(x, Tensor) else x, results)


def main() -> None:
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("_", "IMPL")
    library.fallback(run_on_cpu, "PrivateUse1")
    import transformer_kernels as tfk

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        memory = torch.randn(4, 8)
        x = to_device(memory)
        for function in (tfk.functional.gelu, tfk.functional.softmax, tfk.functional.gelu):
            given = (-1,) if function is tfk.functional.softmax else ()
            y = function(x, *given)
            assert y.device.type == NAME, y.device
            torch.testing.assert_close(to_cpu(y), function(memory, *given))
    print([str(w.message) for w in caught], file=sys.stdout)


if __name__ == "__main__":
    main()
