# SPDX-License-Identifier: MIT
"""Scores tokens after the decoder, for training by examples and by rewards: log-probabilities,
entropy and accuracy, in chunks without logits.

:class:`LossHead` is a function of hidden states; :func:`add_loss_head` gives it to a model, by the
protocol of TRL's trainers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.utils.generic import ModelOutput

from .._errors import ArgumentTypeError, ArgumentValueError, as_number
from .._torch import evaluating, forwards_of, is_bare
from ..nn import Linear
from ..ops._dtype import accumulate_dtype
from ..ops.linear_loss._statistics import accuracy_of, entropy_of
from ..ops.linear_loss.linear_cross_entropy import TokenScores, linear_token_log_probs
from ..ops.loss.cross_entropy import token_log_probs

_HEADS = forwards_of(nn.Linear, Linear)
_OUTPUTS = ("log_probs", "entropy", "is_top1")


class LossHead:
    """The head of a language model as scores of tokens: the log-probabilities that
    ``selective_log_softmax(head(hidden) / temperature, tokens)`` of TRL gives, without the logits.

    >>> from transformer_kernels.integrations.loss_head import LossHead
    >>> head = LossHead(torch.nn.Linear(32, 1000, bias=False), temperature=0.7)
    >>> hidden, tokens = torch.randn(2, 8, 32), torch.randint(1000, (2, 8))
    >>> log_probs, entropy, accuracy = head(hidden, tokens, return_entropy=True)

    A head that is no plain linear layer, such as one with an adapter, computes its logits.

    Args:
        head: the linear layer (V, K) at the end of the model.
        temperature: logits are divided by it, after the soft cap.
        softcap: above 0, logits become ``softcap * tanh(logits / softcap)``.
    """

    def __init__(self, head: nn.Module, *, temperature: float = 1.0, softcap: float = 0.0) -> None:
        temperature = as_number("LossHead", "temperature", temperature)
        if not temperature > 0:
            raise ArgumentValueError(
                f"LossHead: temperature is {temperature:g}, expected a number above 0"
            )
        self.head = head
        self.temperature = temperature
        self.softcap = as_number("LossHead", "softcap", softcap)

    def __call__(
        self,
        hidden: Tensor,
        tokens: Tensor,
        *,
        ignore_index: int = -100,
        return_entropy: bool = False,
        return_accuracy: bool = False,
    ) -> TokenScores:
        """Scores ``tokens`` (...), of which each follows its row of ``hidden`` (..., K).

        Args:
            hidden: (..., K), the decoder's last hidden states.
            tokens: (...), int32 or int64; rows with ``ignore_index`` have scores of 0.
            return_entropy: also give the entropy of the next token, with a gradient.
            return_accuracy: also give 1 where the token is the most likely one, else 0.
        """
        cap = self.softcap / self.temperature
        if not is_bare(self.head, _HEADS):
            return self._of_logits(
                self.head(hidden) / self.temperature, tokens, cap, ignore_index, return_entropy,
                return_accuracy,
            )  # fmt: skip
        head: Any = self.head
        weight, bias = head.weight, head.bias
        if self.temperature != 1:  # a cap divided by it is that of logits divided by it
            hidden = hidden / self.temperature
            bias = None if bias is None else bias / self.temperature
        found = linear_token_log_probs(
            hidden, weight, tokens, linear_bias=bias, softcap=cap, ignore_index=ignore_index,
            return_entropy=return_entropy, return_accuracy=return_accuracy,
        )  # fmt: skip
        return found if isinstance(found, TokenScores) else TokenScores(found, None, None)

    def _of_logits(
        self, logits: Tensor, tokens: Tensor, cap: float, ignored: int, entropy: bool, hits: bool
    ) -> TokenScores:
        counted = tokens != ignored
        return TokenScores(
            token_log_probs(logits, tokens, softcap=cap, ignore_index=ignored),
            entropy_of(logits, counted, cap) if entropy else None,
            accuracy_of(logits, tokens, counted) if hits else None,
        )


# ---- in a model ---------------------------------------------------------------------------------


@dataclass
class LossHeadOutput(ModelOutput):
    """Scores of the labels, by the names that TRL's trainers read; 0 where a label is -100.

    ``log_probs``, ``entropy`` and ``is_top1`` are (batch, time - 1), or (batch, time) with
    ``shift_labels``; so is ``label_mask``, which tells the labels that count. ``loss`` is the
    negative sum of ``log_probs`` over ``num_items_in_batch`` or the number of labels.
    """

    loss: Tensor | None = None
    log_probs: Tensor | None = None
    entropy: Tensor | None = None
    log_sum_sq_probs: Tensor | None = None
    mean_logits: Tensor | None = None
    is_top1: Tensor | None = None
    label_mask: Tensor | None = None
    aux_loss: Tensor | None = None


def add_loss_head(
    model: Any, *, temperature: float = 1.0, outputs: Sequence[str] = ("log_probs",)
) -> None:
    """Lets ``model(..., labels=labels, fused_lm_head=True)`` return scores of the labels instead of
    logits; other calls are what they were.

    TRL's trainers make such calls, and put a head of their own into the model; call this after the
    trainer is made, with the outputs that it reads: ``("log_probs", "entropy", "is_top1")`` for
    ``SFTTrainer``. The scores are first compared with those of the model's logits.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from transformer_kernels.integrations.loss_head import add_loss_head
    >>> model = LlamaForCausalLM(LlamaConfig(
    ...     vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
    ...     num_attention_heads=2,
    ... ))
    >>> add_loss_head(model, outputs=("log_probs", "entropy"))
    >>> tokens = torch.randint(100, (2, 8))
    >>> model(tokens, labels=tokens, fused_lm_head=True).entropy.shape
    torch.Size([2, 7])

    Args:
        model: a causal language model of Transformers, without a wrapper around it.
        temperature: logits are divided by it.
        outputs: what to compute beside ``log_probs``: ``"entropy"``, ``"is_top1"``.

    Raises:
        ArgumentValueError: an output is another one, or the model's logits are not those of its
            output embeddings, up to ``config.final_logit_softcapping``.
    """
    unknown = [name for name in outputs if name not in _OUTPUTS]
    if unknown:
        raise ArgumentValueError(
            f"add_loss_head: outputs has {unknown[0]!r}, expected some of {', '.join(_OUTPUTS)}"
        )
    if not hasattr(model, "get_output_embeddings"):
        raise ArgumentTypeError(
            f"add_loss_head: model is {type(model).__name__}, expected a causal language model of"
            " Transformers"
        )
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None) or 0.0
    _check_scores(model, softcap)
    before = model.forward.__func__  # not bound: a copy of the model calls its own

    @functools.wraps(type(model).forward)  # generate() reads the names of arguments
    def forward(self: Any, *arguments: Any, fused_lm_head: bool = False, **options: Any) -> Any:
        if not fused_lm_head:
            return before(self, *arguments, **options)
        head = LossHead(self.get_output_embeddings(), temperature=temperature, softcap=softcap)
        return _scored(self, head, outputs, *arguments, **options)

    model.forward = MethodType(forward, model)


def _scored(
    model: Any,
    head: LossHead,
    outputs: Sequence[str],
    *arguments: Any,
    labels: Tensor | None = None,
    shift_labels: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
    **options: Any,
) -> LossHeadOutput:
    if options.get("output_router_logits") or getattr(model.config, "output_router_logits", False):
        raise ArgumentValueError(
            "add_loss_head: output_router_logits is True, expected False (the loss of routers needs"
            " the head of TRL)"
        )
    hidden = model.base_model(*arguments, **{**options, "use_cache": False}).last_hidden_state
    if shift_labels is None:
        if labels is None:
            raise ArgumentTypeError("add_loss_head: labels is NoneType, expected a Tensor")
        hidden, shift_labels = hidden[:, :-1], labels[:, 1:]
    shift_labels = shift_labels.to(hidden.device)
    scores = head(
        hidden, shift_labels, return_entropy="entropy" in outputs,
        return_accuracy="is_top1" in outputs,
    )  # fmt: skip
    mask = shift_labels != -100
    count = mask.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return LossHeadOutput(
        loss=-scores.log_probs.sum() / count,
        log_probs=scores.log_probs,
        entropy=scores.entropy,
        is_top1=scores.accuracy,
        label_mask=mask,
    )


@torch.no_grad()
def _check_scores(model: Any, softcap: float) -> None:
    """Compares the head with the model's logits of a few tokens: some models multiply theirs."""
    device = model.get_output_embeddings().weight.device
    tokens = torch.arange(1, 5, device=device).unsqueeze(0)
    with evaluating(model.modules()):
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        found = _scored(
            model, LossHead(model.get_output_embeddings(), softcap=softcap), (), tokens,
            labels=tokens,
        ).log_probs  # fmt: skip
    expected = F.log_softmax(logits.to(accumulate_dtype(logits)), -1).gather(
        -1, tokens[:, 1:, None]
    )
    near = 64 * torch.finfo(logits.dtype).eps * (1 + expected.abs().max().item())
    if found is None or not torch.allclose(found, expected.squeeze(-1), rtol=0, atol=near):
        raise ArgumentValueError(
            f"add_loss_head: model is a {type(model).__name__}, whose logits are not those of its"
            " output embeddings, expected one whose are"
        )
