# SPDX-License-Identifier: MIT
"""Arguments for the recorded run: the caller's, cut to a few rows, or made up from the model's
configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._errors import ArgumentTypeError, ArgumentValueError
from .record import tensors_in, with_items

_BATCH = 2
_TIME = 37  # a prime, which is no width of a model: dimensions of time can be told from others
_USUAL = {"cpu": (8, 128), "cuda": (8, 1024)}  # batch and time where nobody gave arguments


class Inputs(NamedTuple):
    """The arguments of the recorded run."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    text: str  # says what they are
    factor: int = 1  # how many times as many rows the caller's have
    time: tuple[int, int] | None = None  # tokens of a sequence: as recorded, and the caller's
    whole: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]] = lambda: ((), {})  # not cut


def given(model: nn.Module, inputs: Any) -> Inputs:
    """The arguments that a caller gave, or made-up ones for None.

    Raises:
        ArgumentTypeError: ``inputs`` is neither a tensor, a tuple or list, a dict nor None.
        ArgumentValueError: it is None, and the model does not say what it takes.
    """
    if inputs is None:
        return _made_up(model)
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping):
        args, kwargs = (), dict(inputs)
    elif isinstance(inputs, (tuple, list)):
        args, kwargs = tuple(inputs), {}
    else:
        raise ArgumentTypeError(
            f"fuse: inputs is {type(inputs).__name__}, expected a dict of keyword arguments, or a"
            " tuple of positional ones"
        )
    batch, time = _sizes(args, kwargs)
    whole = args, kwargs
    args, kwargs = _cut(args, batch, time), _cut(kwargs, batch, time)
    rows = (batch or 1) * (time or 1)
    kept = min(batch or 1, _BATCH) * min(time or 1, _TIME)
    text = f"the given ones: {_words(args, kwargs)}"
    times = None if time is None else (min(time, _TIME), time)
    return Inputs(args, kwargs, text, max(1, rows // kept), times, lambda: whole)


def _sizes(*trees: Any) -> tuple[int | None, int | None]:
    """The batch that all tensors begin with, and the time of those that hold tokens."""
    found = [x for tree in trees for x in tensors_in(tree) if x.dim() > 0]
    batches = {x.shape[0] for x in found}
    batch = batches.pop() if len(batches) == 1 else None
    tokens = [x for x in found if x.dim() == 2 and not x.is_floating_point()]
    times = {x.shape[1] for x in tokens}
    is_text = len(tokens) == len(found) and len(times) == 1
    return batch, times.pop() if is_text else None


def _cut(x: Any, batch: int | None, time: int | None) -> Any:
    if isinstance(x, Tensor) and x.dim() > 0:
        if batch is not None:
            x = x[:_BATCH]
        return x[:, :_TIME].contiguous() if time is not None else x  # models view their inputs
    if isinstance(x, (tuple, list)):
        return with_items(x, (_cut(value, batch, time) for value in x))
    if type(x) is dict:
        return {name: _cut(value, batch, time) for name, value in x.items()}
    return x


def _words(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    named = {**{str(i): x for i, x in enumerate(args)}, **kwargs}
    shapes = (f"{n} {tuple(x.shape)}" for n, x in named.items() if isinstance(x, Tensor))
    return ", ".join(shapes)


# ---- made up ------------------------------------------------------------------------------------


def _made_up(model: nn.Module) -> Inputs:
    config = getattr(model, "config", None)
    device = next(iter(model.parameters()), torch.empty(0)).device
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    takes = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}

    def made(batch: int, time: int) -> dict[str, Tensor]:
        cards = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(cards), torch.device("cpu"):
            if config is not None:
                found = _of_config(model, config, batch, time)
            else:
                found = _of_modules(model, batch, time)
        if found is None:
            raise ArgumentValueError(
                "fuse: inputs is None, expected the arguments of a call (the model has no"
                " configuration that says their shapes)"
            )
        return {
            name: x.to(device, dtype if x.is_floating_point() else None)
            for name, x in found.items()
        }  # fmt: skip

    kwargs = made(_BATCH, _TIME)
    batch, time = _USUAL["cuda" if device.type == "cuda" else "cpu"]
    return Inputs(
        (), {**kwargs, **options}, f"made up: {_words((), kwargs)}",
        max(1, batch * time // (_BATCH * _TIME)), (_TIME, time),
        lambda: ((), {**made(batch, time), **options}),
    )  # fmt: skip


def _of_config(model: nn.Module, config: Any, batch: int, time: int) -> dict[str, Tensor] | None:
    takes = inspect.signature(model.forward).parameters
    made: dict[str, Tensor] = {}
    if "pixel_values" in takes and getattr(config, "image_size", None):
        size: Any = config.image_size
        sides = size if isinstance(size, (tuple, list)) else (size, size)
        channels = getattr(config, "num_channels", 3)
        made["pixel_values"] = torch.randn(batch, channels, *sides)
    if "input_features" in takes and hasattr(config, "num_mel_bins"):
        frames = 2 * config.max_source_positions
        made["input_features"] = torch.randn(batch, config.num_mel_bins, frames)
    text = getattr(config, "text_config", config)
    words = getattr(text, "vocab_size", None)
    if words:
        longest = getattr(text, "max_position_embeddings", None) or time
        tokens = torch.randint(min(3, words - 1), words, (batch, min(time, longest)))
        names = ["input_ids"] if not made or "decoder_input_ids" not in takes else []
        if getattr(config, "is_encoder_decoder", False):
            names.append("decoder_input_ids")
        if getattr(model, "get_output_embeddings", lambda: None)() is not None:
            names.append("labels")
        made |= {name: tokens for name in names if name in takes}
    return made or None


def _of_modules(model: nn.Module, batch: int, time: int) -> dict[str, Tensor] | None:
    """Arguments of timm's models, which say their images' size, and of PyTorch's transformers."""
    image = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if isinstance(image, Mapping) and "input_size" in image:
        first = next(iter(inspect.signature(model.forward).parameters))
        return {first: torch.randn(batch, *image["input_size"])}
    attention = next((m for m in model.modules() if isinstance(m, nn.MultiheadAttention)), None)
    kinds = (
        nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer,
        nn.TransformerDecoderLayer,
    )  # fmt: skip
    if attention is None or not isinstance(model, kinds):
        return None
    takes = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in takes if p.default is p.empty]
    sizes = (batch, time) if attention.batch_first else (time, batch)
    return {name: torch.randn(*sizes, attention.embed_dim) for name in names}
