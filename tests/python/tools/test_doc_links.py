# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from doc_links import address

TORCH, PYTHON = "https://docs.pytorch.org/docs/stable", "https://docs.python.org/3/library"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("torch.nn.functional.softmax", f"{TORCH}/generated/torch.nn.functional.softmax.html"),
        ("Tensor", f"{TORCH}/tensors.html#torch.Tensor"),
        ("torch.dtype", f"{TORCH}/tensor_attributes.html#torch.dtype"),
        ("nn.Module", f"{TORCH}/generated/torch.nn.Module.html"),
        ("float", f"{PYTHON}/functions.html#float"),
        ("dict", f"{PYTHON}/stdtypes.html#dict"),
        ("ValueError", f"{PYTHON}/exceptions.html#ValueError"),
        ("None", f"{PYTHON}/constants.html#None"),
        ("Sequence", f"{PYTHON}/collections.abc.html#collections.abc.Sequence"),
        ("os.PathLike", f"{PYTHON}/os.html#os.PathLike"),
        ("transformer_kernels.nn.LayerNorm", None),
        ("LayerNorm", None),
        ("print", None),
    ],
)
def test_a_name_has_its_page(name: str, place: str | None) -> None:
    assert address(name) == place


def test_a_module_has_a_page_of_its_own() -> None:
    assert address("torch.nn.functional", is_module=True) == f"{TORCH}/nn.functional.html"
