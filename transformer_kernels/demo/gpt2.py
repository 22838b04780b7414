# SPDX-License-Identifier: MIT
"""Puts kernels into Hugging Face's GPT-2 by hand, in four steps that build on each other.

    norms        a norm is one kernel, forward and backward
    attention    so is attention; projections read Conv1D's weights without a copy
    blocks       bias, dropout, residual and the next norm after a product are one pass
    everything   tokens and positions are one pass; a block's last pass computes the next block's
                 norm; in training the loss is computed without the logits

A step gives modules of the model a derived class, which differs only in its ``forward``. So
parameters, hooks and ``state_dict`` keep their types and places, and calls that a step does not
handle go to ``super()``: encoders beside the decoder, recorded hidden states, checkpointed layers.
Each call checks that the modules that a step leaves out are bare; if one has an adapter, a hook or
pruning, or was replaced, stock code runs the block, or the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, EncoderDecoderCache
from transformers.activations import ACT2FN
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithCrossAttentions,
)
from transformers.models.gpt2.modeling_gpt2 import (
    GPT2MLP,
    GPT2Attention,
    GPT2Block,
    GPT2LMHeadModel,
    GPT2Model,
)
from transformers.pytorch_utils import Conv1D

import transformer_kernels as tfk
from transformer_kernels._torch import are_bare, forwards_of, is_bare, is_plain_parameter, is_table
from transformer_kernels.integrations.transformers import ATTENTION, attend


def put_in_kernels(model: Any) -> Any:
    """Applies all steps to ``model``, a ``GPT2LMHeadModel``, in place."""
    for put_in in STEPS.values():
        put_in(model)
    return model


def give_classes(model: nn.Module, classes: dict[type, type]) -> None:
    """Gives every module whose class is exactly a key of ``classes`` the derived class there."""
    for module in model.modules():
        module.__class__ = classes.get(type(module), type(module))


# ---- norms --------------------------------------------------------------------------------------


def put_in_norms(model: nn.Module) -> None:
    give_classes(model, {nn.LayerNorm: tfk.nn.LayerNorm})


# ---- attention ----------------------------------------------------------------------------------


class Projection(Conv1D):
    """A projection whose weight is (inputs, outputs), which a product reads as well as its
    transpose."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_plain_parameter(self.weight):
            stock: Tensor = super().forward(x)
            return stock
        return tfk.functional.linear(x, self.weight.t(), self.bias)


def put_in_attention(model: Any) -> None:
    give_classes(model, {Conv1D: Projection})
    model.config._attn_implementation = ATTENTION


# ---- blocks -------------------------------------------------------------------------------------

ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu",
    "relu2": "relu_squared", "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu",
}  # fmt: skip
# Keyed by the class of the module that stands in an MLP.
ACTIVATION_OF = {type(ACT2FN[name]): ours for name, ours in ACTIVATIONS.items()}

# Classes of modules that a fused block may leave out, by their places.
PROJECTIONS = forwards_of(Conv1D, Projection)
NORMS = forwards_of(nn.LayerNorm, tfk.nn.LayerNorm)
DROPOUTS = forwards_of(nn.Dropout, tfk.nn.Dropout)
OF_BLOCK = {
    "ln_1": NORMS, "attn": forwards_of(GPT2Attention), "ln_2": NORMS, "mlp": forwards_of(GPT2MLP),
}  # fmt: skip
OF_ATTENTION = {"c_proj": PROJECTIONS, "resid_dropout": DROPOUTS}
OF_MLP = {
    "c_fc": PROJECTIONS, "act": forwards_of(*ACTIVATION_OF), "c_proj": PROJECTIONS,
    "dropout": DROPOUTS,
}  # fmt: skip


def add_branch(
    residual: Tensor,
    product: Tensor,
    projection: Conv1D,
    dropout: nn.Dropout,
    norm: nn.LayerNorm | None,
) -> tuple[Tensor, Tensor | None]:
    """Computes ``residual + dropout(product + bias)`` and its norm, in one pass after the
    product."""
    if norm is None or residual.dtype is not torch.float32:
        product = product.to(residual.dtype)  # under autocast, products are narrower
    p, training = dropout.p, dropout.training
    if norm is None:
        total = tfk.functional.bias_dropout_add(product, projection.bias, residual, p, training)
        return total, None
    normed, total = tfk.functional.bias_dropout_add_layer_norm(
        product, projection.bias, residual, norm.weight, norm.bias, p, training, norm.eps
    )
    return total, normed


# The name of the argument of keys and values, which Transformers 5.24 renamed.
CACHE = next(
    name
    for name in inspect.signature(GPT2Model.forward).parameters
    if name in ("cache", "past_key_values")
)


def given_cache(cache: Any, options: dict[str, Any]) -> Any:
    """The cache under either name; the old one is removed from ``options``."""
    old = options.pop("past_key_values", None)
    return old if cache is None else cache


class Block(GPT2Block):
    """A block of two branches: each runs from a norm to the sum with the residual and the next
    norm."""

    def forward(
        self,
        hidden_states: Any,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        use_cache: bool | None = False,
        normed: Any = None,
        next_norm: nn.LayerNorm | None = None,
        **options: Any,
    ) -> Any:
        """Runs the block. With ``normed``, which is ``ln_1(hidden_states)``, it begins after its
        norm; with ``next_norm`` it ends after that one, and returns the pair of sum and norm. A
        caller who passes either has checked that the block is open."""
        cache = given_cache(cache, options)
        is_ours = normed is not None or (
            encoder_hidden_states is None
            and not isinstance(cache, EncoderDecoderCache)
            and self.is_open()
        )
        if not is_ours:
            return super().forward(
                hidden_states, cache, attention_mask, encoder_hidden_states,
                encoder_attention_mask, use_cache, **options,
            )  # fmt: skip
        attn, mlp = self.attn, self.mlp
        normed = self.ln_1(hidden_states) if normed is None else normed
        heads = self._heads(normed, cache, attention_mask, options.get("is_causal"))
        product = tfk.functional.linear(heads, attn.c_proj.weight.t())
        hidden_states, normed = add_branch(
            hidden_states, product, attn.c_proj, attn.resid_dropout, self.ln_2
        )
        product = self._through_mlp(normed)
        pair = add_branch(hidden_states, product, mlp.c_proj, mlp.dropout, next_norm)
        return pair[0] if next_norm is None else pair

    def is_open(self) -> bool:
        """Whether attention is ours and each module that ``forward`` leaves out is bare."""
        if not are_bare(self, OF_BLOCK):
            return False
        attn, mlp = self.attn, self.mlp
        is_ours = attn.config._attn_implementation == ATTENTION
        return is_ours and are_bare(attn, OF_ATTENTION) and are_bare(mlp, OF_MLP)

    def _through_mlp(self, x: Tensor) -> Tensor:
        """The MLP without its second bias. As one op it saves less for the backward pass, which on
        Hopper recomputes the rest within a product; on a CPU that would take another pass."""
        fc, down = self.mlp.c_fc, self.mlp.c_proj
        activation = ACTIVATION_OF[type(self.mlp.act)]
        if x.is_cuda:
            return tfk.functional.mlp(
                x, fc.weight.t(), fc.bias, down.weight.t(), activation=activation
            )
        hidden = tfk.functional.linear_act(x, fc.weight.t(), fc.bias, activation)
        return tfk.functional.linear(hidden, down.weight.t())

    def _heads(self, x: Tensor, cache: Any, mask: Tensor | None, is_causal: bool | None) -> Tensor:
        attn = self.attn
        parts = attn.c_attn(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (attn.num_heads, -1)).transpose(1, 2) for part in parts)
        if cache is not None:
            k, v = cache.update(k, v, attn.layer_idx)
        dropout = attn.attn_dropout.p if self.training else 0.0
        out, _ = attend(attn, q, k, v, mask, dropout, attn.scaling, is_causal)
        return out.flatten(-2)


def put_in_blocks(model: Any) -> None:
    activation = model.config.activation_function
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"put_in_blocks: activation_function is {activation!r}, expected one of"
            f" {', '.join(ACTIVATIONS)}"
        )
    give_classes(model, {GPT2Block: Block, nn.Dropout: tfk.nn.Dropout})


# ---- everything ---------------------------------------------------------------------------------

BLOCKS, HEADS = forwards_of(Block), forwards_of(nn.Linear, tfk.nn.Linear)


def is_open(model: Any) -> bool:
    """Whether :func:`forward` may leave out the tables and norms, and hand norms over to blocks."""
    return (
        is_table(model.wte)
        and is_table(model.wpe)
        and model.wpe.padding_idx is None
        and is_bare(model.ln_f, NORMS)
        and not model.config.add_cross_attention
        and all(is_bare(block, BLOCKS) and block.is_open() for block in model.h)
    )


def forward(
    self: Any,
    input_ids: Any = None,
    cache: Any = None,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    use_cache: bool | None = None,
    **options: Any,
) -> Any:
    """``GPT2Model.forward`` in which each block computes the norm of the block after it."""
    cache = given_cache(cache, options)
    others = (token_type_ids, inputs_embeds, encoder_hidden_states, encoder_attention_mask)
    is_plain = input_ids is not None and input_ids.dim() == 2
    has_others = any(x is not None for x in others)
    if not is_plain or has_others or _has_wishes(self, options) or not is_open(self):
        return GPT2Model.forward(
            self, input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids,
            position_ids=position_ids, inputs_embeds=inputs_embeds,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask, use_cache=use_cache,
            **{CACHE: cache}, **options,
        )  # fmt: skip
    self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
    use_cache = self.config.use_cache if use_cache is None else use_cache
    if use_cache and cache is None:
        cache = DynamicCache(config=self.config)
    positions = _positions(input_ids, position_ids, cache)
    embedded = tfk.functional.embedding_add(
        input_ids, self.wte.weight, positions, self.wpe.weight, self.wte.padding_idx
    )
    hidden = self.drop(embedded)
    mask = create_causal_mask(
        config=self.config, inputs_embeds=hidden, attention_mask=attention_mask,
        position_ids=position_ids, **{CACHE: cache},
    )  # fmt: skip
    norms = [*(block.ln_1 for block in self.h), self.ln_f]
    normed = norms[0](hidden)
    for block, norm in zip(self.h, norms[1:], strict=True):
        hidden, normed = block(
            hidden, cache, mask, use_cache=use_cache, normed=normed, next_norm=norm
        )
    return BaseModelOutputWithPastAndCrossAttentions(
        last_hidden_state=normed, **{CACHE: cache if use_cache else None}
    )


def _asked(model: Any, options: dict[str, Any], name: str, default: Any) -> Any:
    """The value of an option of the call, or else of the configuration."""
    found = options.get(name)
    return getattr(model.config, name, default) if found is None else found


def _has_wishes(model: Any, options: dict[str, Any]) -> bool:
    """Whether the call asks to record, recompute or return something that only stock code can."""
    return (
        _asked(model, options, "output_hidden_states", False)
        or _asked(model, options, "output_attentions", False)
        or _asked(model, options, "is_causal", None) is not None
        or not _asked(model, options, "return_dict", True)
        or (model.gradient_checkpointing and model.training)
    )


def _positions(tokens: Tensor, position_ids: Tensor | None, cache: Any) -> Tensor | None:
    """Positions of the tokens; None where they begin at 0."""
    if position_ids is not None:
        return position_ids.expand_as(tokens)
    if cache is None:
        return None
    return torch.arange(tokens.shape[-1], device=tokens.device) + cache.get_seq_length()


def _loss_of_next(
    cross_entropy: Callable[..., Tensor],
    operands: tuple[Tensor, ...],
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **_options: Any,
) -> Tensor:
    """The mean loss over tokens that follow another. Labels are shifted, which are the smallest
    tensor."""
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    loss = cross_entropy(
        *operands, shift_labels.flatten().to(operands[0].device), ignore_index=ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum",
    )  # fmt: skip
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def causal_loss(logits: Tensor, labels: Tensor, vocab_size: int, **options: Any) -> Tensor:
    operands = (logits.view(-1, vocab_size),)
    return _loss_of_next(tfk.functional.cross_entropy, operands, labels, **options)


def causal_loss_of_hidden(
    hidden: Tensor, head: nn.Linear, labels: Tensor, **options: Any
) -> Tensor:
    """The loss of ``head(hidden)``, whose logits are never stored whole."""
    operands = (hidden.flatten(0, -2), head.weight)
    loss = partial(tfk.functional.linear_cross_entropy, linear_bias=head.bias)
    return _loss_of_next(loss, operands, labels, **options)


@wraps(GPT2LMHeadModel.forward)
def forward_to_loss(self: Any, input_ids: Any = None, *others: Any, **options: Any) -> Any:
    """``GPT2LMHeadModel.forward``, which in training returns the loss of the labels and no
    logits."""
    labels = options.get("labels")
    if labels is None or others or not (self.training and _loss_is_ours(self, options)):
        return GPT2LMHeadModel.forward(self, input_ids, *others, **options)
    del options["labels"]
    found = self.transformer(input_ids, **options)
    hidden = found.last_hidden_state
    return CausalLMOutputWithCrossAttentions(
        loss=causal_loss_of_hidden(hidden, self.lm_head, labels, **options),
        hidden_states=found.hidden_states,
        attentions=found.attentions,
        cross_attentions=found.cross_attentions,
        **{CACHE: getattr(found, CACHE)},
    )


def _loss_is_ours(model: Any, options: dict[str, Any]) -> bool:
    """Whether the loss and the head are unchanged and without hooks, and no other result is
    wanted."""
    return (
        model.loss_function is causal_loss
        and is_bare(model.lm_head, HEADS)
        and "logits_to_keep" not in options
        and _asked(model, options, "return_dict", True)
    )


def put_in_everything(model: Any) -> None:
    give_classes(model, {nn.Linear: tfk.nn.Linear})
    model.transformer.forward = MethodType(forward, model.transformer)
    model.forward = MethodType(forward_to_loss, model)
    model.loss_function = causal_loss


STEPS: dict[str, Callable[[Any], None]] = {
    "norms": put_in_norms,
    "attention": put_in_attention,
    "blocks": put_in_blocks,
    "everything": put_in_everything,
}
