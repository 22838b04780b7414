# SPDX-License-Identifier: MIT
"""The loss of a language model, with its logits kept: the one that Hugging Face's models call
through ``loss_function``, and a ``CrossEntropyLoss`` that a ``forward`` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import functional
from ...nn import CrossEntropyLoss
from ...ops.loss._ops import CROSS_ENTROPY
from ..cost import bytes_of, meta, recorded_bytes
from ..derive import innermost, original
from ..prove import agree
from ..record import Node, Trace, Value
from ..site import Calls, Refusal, Site
from ._logits import LOSS
from ._pattern import Pattern
from ._rebound import Rebound, names_of, rebound_in_place, replaces

_MADE = "CrossEntropyLoss"
_MOST_LOGITS = {"cuda": 2**27}  # that are timed
_SETTER = "loss_function"  # of Hugging Face's models


def loss_of_next(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **_options: Any,
) -> Tensor:
    """Hugging Face's loss of causal language models: each token is predicted from those before it.
    Labels are shifted, which are the smallest tensor, and logits are read as they are."""
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    flat = shift_labels.flatten().to(logits.device)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = functional.cross_entropy(
        logits.view(-1, vocab_size), flat, ignore_index=ignore_index, reduction=reduction
    )
    loss = loss if logits.dtype is torch.float64 else loss.float()
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch


def _is_loss_of_next(function: Callable[..., Any]) -> bool:
    """Whether a loss is the one above, by what it gives."""
    generator = torch.Generator("cpu").manual_seed(5)
    logits = torch.randn(2, 7, 11, generator=generator, device="cpu")
    labels = torch.randint(11, (2, 7), generator=generator, device="cpu")
    labels[0, 3] = -100
    for options in ({}, {"num_items_in_batch": 5}, {"shift_labels": labels.flip(1)}):
        given: dict[str, Any] = {"logits": logits, "labels": labels, "vocab_size": 11, **options}
        try:
            if not agree(loss_of_next(**given), function(**given)):
                return False
        except Exception:  # whatever a function of the user's raises
            return False
    return True


def _replace(scope: Mapping[str, Any], used: tuple[str, ...]) -> dict[str, Any]:
    is_made = _MADE in used and scope.get(_MADE) is nn.CrossEntropyLoss
    return {_MADE: CrossEntropyLoss} if is_made else {}


replaces("loss", _replace)


def _gets_class(model: nn.Module, trace: Trace, sites: Sequence[Site]) -> bool:
    """Whether the model itself does not keep its class anyway."""
    return trace.skips_logits or any(site.module is model for site in sites)


class LossPattern(Pattern):
    name = "loss"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        nodes = [node for node in trace.nodes if node.name == LOSS]
        for node in nodes:
            module = model.get_submodule(node.path)
            kind: Any = original(type(module))
            forward = innermost(kind.forward)
            used = forward.__code__.co_names if hasattr(forward, "__code__") else ()
            stock = getattr(module, _SETTER, None) if _SETTER in used else None
            if stock is not None and _is_loss_of_next(stock):
                ours = {_SETTER: loss_of_next}
                yield self._site(node, trace, module, attributes=ours)
            elif not names_of(kind, self.name):
                yield Refusal(node.path, self.name, "the loss is not called from its forward")
            elif "forward" in vars(module):
                yield Refusal(node.path, self.name, "its forward was replaced", "fuse before that")
            elif module is model and not _gets_class(model, trace, sites):
                ours = rebound_in_place(module, self.name)
                yield self._site(node, trace, module, attributes=ours)
            else:
                state = {"_tfk_rebound": kind}
                yield self._site(node, trace, module, Rebound, state=state)

    def _site(
        self, node: Node, trace: Trace, module: nn.Module, mixin: type | None = None, **more: Any
    ) -> Site:
        x = trace.values[trace.source(node.ins[0])]  # before a cast to float32
        moved = bytes_of(CROSS_ENTROPY, x=meta(x))
        return Site(
            self.name, node.path, module, mixin, function=CROSS_ENTROPY.function,
            key=(x.shape[-1], x.dtype), shape=x.shape, launches=(2, 1),
            bytes=(3 * recorded_bytes(trace, [node]), moved), trial=_trial(x), **more,
        )  # fmt: skip


def _trial(x: Value) -> Callable[[int], Calls]:
    classes = x.shape[-1]
    most = max(128, _MOST_LOGITS.get(x.device.type, 0) // classes)

    def trial(rows: int) -> Calls:
        rows = min(rows, most)  # the rows are long: so few of them tell
        labels = torch.randint(classes, (rows,), device=x.device)
        logits = torch.randn(rows, classes, dtype=x.dtype, device=x.device)
        return Calls(
            lambda x: F.cross_entropy(x.float(), labels),
            lambda x: functional.cross_entropy(x, labels), (logits,),
        )  # fmt: skip

    return trial
