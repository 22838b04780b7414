# SPDX-License-Identifier: MIT
"""Makes ``torch.compile`` know the backend by its name.

An installed package says it in its metadata, where PyTorch looks for entry points when it meets an
unknown name. A source tree on the path has no metadata, so a finder gives the same, and PyTorch's
compiler need not be imported here: it takes as long as PyTorch itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from .._version import __version__

NAME = "transformer_kernels"
GROUP = "torch_dynamo_backends"
VALUE = "transformer_kernels.fuse.backend:compile_graph"
_REGISTRY = "torch._dynamo.backends.registry"
_DISTRIBUTION = "transformer-kernels"
_FILES = {
    "METADATA": f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {__version__}\n",
    "entry_points.txt": f"[{GROUP}]\n{NAME} = {VALUE}\n",
}


class _SourceTree(Distribution):
    """The metadata that an installed package has, as far as PyTorch reads them."""

    def read_text(self, filename: str) -> str | None:
        return _FILES.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Any:
        return Path(__file__).parents[2] / path


class _Finder(DistributionFinder):
    """Finds the source tree's metadata, behind those of an installed package."""

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008
    ) -> Iterable[Distribution]:
        return [_SourceTree()] if context.name in (None, _DISTRIBUTION, NAME) else []

    def find_spec(
        self,
        fullname: str,  # noqa: ARG002
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> None:
        return None


def register() -> None:
    """Makes the name known, also to a compiler that has looked for names already."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
    registry = sys.modules.get(_REGISTRY)
    if registry is not None and NAME not in registry._COMPILER_FNS:
        from .backend import compile_graph

        registry.register_backend(compile_graph, name=NAME)
