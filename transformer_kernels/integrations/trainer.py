# SPDX-License-Identifier: MIT
"""The kernels in Hugging Face's ``Trainer``, and in those that are derived from it, such as
TRL's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback
from transformers.utils import logging

from ..fuse import Plan, fuse, unfuse

_logger = logging.get_logger(__name__)


class FuseCallback(TrainerCallback):
    """Fuses the model when the trainer is made, or else when training begins.

    ``plan`` says what was fused, and why the rest was not.
    """

    def __init__(self, inputs: Any = None, *, undo: bool = False, **options: Any) -> None:
        self.inputs = inputs
        self.options = options
        self.undo = undo
        self.plan: Plan | None = None

    def on_init_end(self, *_: Any, model: Any = None, **_given: Any) -> None:
        self._put_in(model)

    def on_train_begin(self, *_: Any, model: Any = None, **_given: Any) -> None:
        self._put_in(model)

    def on_train_end(self, *_: Any, model: Any = None, **_given: Any) -> None:
        if self.undo and self.plan is not None and model is not None:
            unfuse(model)
            self.plan = None

    def _put_in(self, model: Any) -> None:
        if model is None or self.plan is not None:
            return
        self.plan = fuse(model, self.inputs, **self.options)
        _logger.info("transformer_kernels: %s", self.plan)


def use_transformer_kernels(
    inputs: Any = None,
    *,
    skip_logits: bool = False,
    measure: bool = True,
    patterns: Sequence[str] | None = None,
    undo: bool = False,
) -> FuseCallback:
    """The callback that puts the kernels into a trainer's model by
    :func:`transformer_kernels.fuse`.

    >>> from transformer_kernels.integrations.trainer import use_transformer_kernels
    >>> kernels = use_transformer_kernels(skip_logits=True)
    >>> callbacks = [kernels]  # of a Trainer, or of an SFTTrainer

    Args:
        inputs: the arguments of a call of the model that is recorded; by default made up.
        skip_logits: in training, compute the loss of the labels without the logits. Not for a
            trainer that computes its loss from logits.
        measure: decline what is not faster on this machine.
        patterns: names of the patterns to look for; by default all.
        undo: take the kernels out when training ends.

    Returns:
        The callback, whose ``plan`` is the plan of the model once it is fused.
    """
    return FuseCallback(
        inputs, undo=undo, skip_logits=skip_logits, measure=measure, patterns=patterns
    )
