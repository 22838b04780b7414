# SPDX-License-Identifier: MIT
"""Reads a Llama from Hugging Face's folder, or from a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import ArgumentValueError
from .config import LlamaConfig
from .from_gguf import config_of, fill
from .gguf_file import GGUFFile

_CONFIG, _ONE, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


Fill = Callable[[Any], None]  # gives a Llama, which has no numbers yet, its weights


def read(
    path: str | PathLike[str], dtype: torch.dtype | None, device: Any, packed: bool
) -> tuple[LlamaConfig, Fill]:
    """Reads the configuration; the weights are read when they are filled in."""
    path = Path(fspath(path))
    if path.is_dir():
        fields = read_json(path / _CONFIG)
        dtype = dtype or _dtype(path / _CONFIG, fields)
        config = _of_file(path / _CONFIG, fields)
        return config, partial(_fill, folder=path, dtype=dtype, device=device)
    if not path.is_file():
        raise ArgumentValueError(f"{path}: does not exist, expected a folder or a GGUF file")
    file = GGUFFile(path)
    options = {"dtype": dtype or torch.float32, "device": device, "packed": packed}
    return config_of(file), partial(fill, file=file, **options)


def _fill(model: Any, folder: Path, dtype: torch.dtype, device: Any) -> None:
    """Fills in the safetensors of a folder."""
    wanted = dict(model.named_parameters())
    found: dict[str, Tensor] = {}
    for name, file, tensor in _tensors(folder):
        if name not in wanted:
            continue
        if tensor.shape != wanted[name].shape:
            raise ArgumentValueError(
                f"{file}: {name} has shape {tuple(tensor.shape)}, expected"
                f" {tuple(wanted[name].shape)} ({_CONFIG})"
            )
        found[name] = tensor.to(device=device, dtype=dtype)
    if lacking := sorted(wanted.keys() - found.keys()):
        raise ArgumentValueError(f"{folder}: its weights have no {lacking[0]}")
    for name, tensor in found.items():
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, nn.Parameter(tensor))
    if model.config.tie_weights:
        model.lm_head.weight = model.model.embed_tokens.weight


def read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArgumentValueError(f"{path}: does not exist") from None
    except ValueError as error:
        raise ArgumentValueError(f"{path}: is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ArgumentValueError(f"{path}: is a {type(fields).__name__}, expected an object")
    return fields


def _of_file(path: Path, fields: Mapping[str, Any]) -> LlamaConfig:
    try:
        return LlamaConfig.from_hugging_face(fields)
    except (ValueError, TypeError) as error:
        raise ArgumentValueError(f"{path}: {error}") from None


def _dtype(path: Path, fields: Mapping[str, Any]) -> torch.dtype:
    name = fields.get("dtype") or fields.get("torch_dtype") or "float32"
    dtype = getattr(torch, str(name), None)
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ArgumentValueError(f"{path}: dtype is {name!r}, expected a floating-point dtype")
    return dtype


def _tensors(folder: Path) -> Iterator[tuple[str, Path, Tensor]]:
    """Yields each tensor of the folder, with its name and its file."""
    import safetensors

    for file in _files(folder):
        if not file.is_file():
            raise ArgumentValueError(f"{file}: does not exist")
        yield from _of_safetensors(file, safetensors)


def _of_safetensors(file: Path, safetensors: Any) -> Iterator[tuple[str, Path, Tensor]]:
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            names = opened.keys()
            for name in names:
                yield name, file, opened.get_tensor(name)
    except safetensors.SafetensorError as error:
        raise ArgumentValueError(f"{file}: {error}") from None


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.exists():
        return [folder / _ONE]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict):
        raise ArgumentValueError(f"{index}: has no weight_map")
    shards = sorted({str(name) for name in names.values()})
    for shard in shards:
        if Path(shard).name != shard:
            raise ArgumentValueError(f"{index}: names {shard}, expected a file beside it")
    return [folder / shard for shard in shards]
