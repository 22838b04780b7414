# SPDX-License-Identifier: MIT
"""The kernels that the demo puts into GPT-2, step by step, beside the stock model."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from transformers import GPT2Config, GPT2LMHeadModel

from transformer_kernels.demo.gpt2 import (
    STEPS,
    add_branch,
    causal_loss,
    causal_loss_of_hidden,
    put_in_kernels,
)
from transformer_kernels.demo.model import stock_model

each_step = pytest.mark.parametrize("step", list(STEPS))
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def stock(**options):
    return stock_model(layers=2, width=32, heads=2, block=16, seed=3, **options)


def with_steps(model, last="everything"):
    """Puts in the steps up to the last one named."""
    for name, put_in in STEPS.items():
        put_in(model)
        if name == last:
            return model
    raise AssertionError(last)


def tokens(batch=3, time=16):
    return torch.randint(256, (batch, time), generator=torch.Generator().manual_seed(5))


def gradients(model):
    return {name: x.grad for name, x in model.named_parameters()}


@pytest.mark.parametrize(
    ("product", "residual", "normed"),
    [
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float16, torch.float32, torch.float16),
        (torch.float32, torch.float32, torch.float32),
        (torch.float16, torch.bfloat16, torch.bfloat16),
    ],
    ids=str,
)
def test_a_branch_under_autocast(product, residual, normed):
    block = stock().transformer.h[0].to(residual)
    given = torch.randn(3, 32).to(product), torch.randn(3, 32).to(residual)
    total, found = add_branch(*reversed(given), block.attn.c_proj, torch.nn.Dropout(0), block.ln_2)
    assert (total.dtype, found.dtype) == (residual, normed)
    wide = (given[0].float() + block.attn.c_proj.bias + given[1].float()).to(residual)
    torch.testing.assert_close(total, wide, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(found, block.ln_2(total).to(normed), rtol=2e-2, atol=1e-2)


@each_step
def test_parameters_stay_what_and_where_they_are(step):
    model = stock()
    before = {key: (x.data_ptr(), x.shape) for key, x in model.state_dict().items()}
    parameters, kinds = list(model.parameters()), [type(m) for m in model.modules()]
    with_steps(model, step)
    assert {key: (x.data_ptr(), x.shape) for key, x in model.state_dict().items()} == before
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(isinstance(m, kind) for m, kind in zip(model.modules(), kinds, strict=True))


@each_step
@pytest.mark.parametrize("padding", [None, slice(10, None), slice(5)], ids=str)
def test_logits_agree_with_padding_and_without(step, padding):
    expecting, model = stock().eval(), with_steps(stock().eval(), step)
    mask = None
    if padding is not None:
        mask = torch.ones(3, 16, dtype=torch.long)
        mask[1, padding] = 0
    expected = expecting(tokens(), attention_mask=mask).logits
    got = model(tokens(), attention_mask=mask).logits
    keep = torch.ones(3, 16, dtype=torch.bool) if mask is None else mask.bool()
    torch.testing.assert_close(got[keep], expected[keep], **CLOSE)


@each_step
def test_losses_and_gradients_agree(step):
    expecting, model = stock(), with_steps(stock(), step)
    labels = tokens().masked_fill(tokens() < 40, -100)
    for each in (expecting, model):
        each(tokens(), labels=labels).loss.backward()
    torch.testing.assert_close(gradients(model), gradients(expecting), **CLOSE)


@each_step
def test_generation_with_a_cache_agrees(step):
    """Compares with the stock model's logits of the generated text; tokens may be equally
    likely."""
    expecting, model = stock().eval(), with_steps(stock().eval(), step)
    options = {"attention_mask": torch.ones(2, 5, dtype=torch.long), "max_new_tokens": 8,
               "do_sample": False, "pad_token_id": 0, "output_logits": True,
               "return_dict_in_generate": True}  # fmt: skip
    got = model.generate(tokens(2, 5), **options)
    expected = expecting(got.sequences).logits[:, 4:-1]
    torch.testing.assert_close(torch.stack(got.logits, 1), expected, **CLOSE)
    assert torch.equal(got.sequences[:, 5:], torch.stack(got.logits, 1).argmax(-1))


def additive_mask():
    hidden = torch.ones(16, 16, dtype=torch.bool).triu(1)
    return torch.zeros(3, 1, 16, 16).masked_fill(hidden, torch.finfo(torch.float32).min)


@pytest.mark.parametrize(
    "options",
    [
        {"position_ids": torch.arange(16).flip(0)[None], "attention_mask": torch.ones(3, 16)},
        {"position_ids": torch.arange(8).repeat(2)[None]},  # two sequences in a row
        {"token_type_ids": tokens() % 7},
        {"attention_mask": additive_mask()},
        {"logits_to_keep": 3},
        {"use_cache": True},
        {"return_dict": False},
    ],
    ids=lambda options: "+".join(options),
)
def test_arguments_mean_what_they_mean(options):
    expected = stock().eval()(tokens(), **options)
    got = put_in_kernels(stock().eval())(tokens(), **options)
    torch.testing.assert_close(got[0], expected[0], **CLOSE)
    assert len(got) == len(expected)


def test_embeddings_in_the_place_of_tokens():
    expecting, model = stock().eval(), put_in_kernels(stock().eval())
    embedded = expecting.transformer.wte(tokens())
    torch.testing.assert_close(
        model(inputs_embeds=embedded).logits, expecting(inputs_embeds=embedded).logits, **CLOSE
    )


def test_hidden_states_are_recorded():
    expected = stock().eval()(tokens(), output_hidden_states=True).hidden_states
    got = put_in_kernels(stock().eval())(tokens(), output_hidden_states=True).hidden_states
    assert len(got) == len(expected) == 3
    torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_may_be_checkpointed(reentrant):
    expecting, model = stock(), put_in_kernels(stock())
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for each in (expecting, model):
        each.train()(tokens(), labels=tokens(), use_cache=False).loss.backward()
    torch.testing.assert_close(gradients(model), gradients(expecting), **CLOSE)


def test_an_encoder_beside_it():
    def fresh():
        torch.manual_seed(1)
        config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=256, n_positions=16,
                            add_cross_attention=True)  # fmt: skip
        return GPT2LMHeadModel(config).eval()

    encoded = torch.randn(3, 7, 32)
    expected = fresh()(tokens(), encoder_hidden_states=encoded).logits
    got = put_in_kernels(fresh())(tokens(), encoder_hidden_states=encoded).logits
    torch.testing.assert_close(got, expected, **CLOSE)


def test_a_copy_runs_its_own_weights():
    model = put_in_kernels(stock().eval())
    twin = copy.deepcopy(model)
    before = model(tokens()).logits
    with torch.no_grad():
        model.transformer.wte.weight.zero_()
    assert torch.equal(twin(tokens()).logits, before)
    assert twin.transformer.forward.__self__ is twin.transformer


def test_what_is_saved_is_stock(tmp_path):
    model = put_in_kernels(stock().eval())
    model.save_pretrained(tmp_path)
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    assert not any("transformer_kernels" in type(m).__module__ for m in loaded.modules())
    torch.testing.assert_close(loaded(tokens()).logits, model(tokens()).logits, **CLOSE)


def test_dropout_drops_in_training_alone():
    model = put_in_kernels(stock(dropout=0.5)).train()
    assert not torch.equal(model(tokens()).logits, model(tokens()).logits)
    model.eval()
    torch.testing.assert_close(model(tokens()).logits, stock().eval()(tokens()).logits, **CLOSE)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_items_in_batch": 7}, {"shift_labels": tokens().flip(0)}, {"ignore_index": 3}],
    ids=lambda options: "+".join(options) or "plain",
)
def test_the_loss_is_stock(options):
    hidden, head = torch.randn(3, 16, 32), nn.Linear(32, 256)
    logits = head(hidden)
    expected = stock().loss_function(logits, tokens() % 5, vocab_size=256, **options)
    got = causal_loss(logits, tokens() % 5, vocab_size=256, **options)
    torch.testing.assert_close(got, expected)
    got = causal_loss_of_hidden(hidden, head, tokens() % 5, **options)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_items_in_batch": 7}, {"shift_labels": tokens().flip(0)},
     {"output_hidden_states": True}, {"use_cache": True}],
    ids=lambda options: "+".join(options) or "plain",
)  # fmt: skip
def test_training_computes_the_loss_without_logits(options):
    expected = stock().train()(tokens(), labels=tokens(), **options)
    got = put_in_kernels(stock().train())(tokens(), labels=tokens(), **options)
    torch.testing.assert_close(got.loss, expected.loss, **CLOSE)
    assert got.logits is None
    assert set(expected) - set(got) == {"logits"}


def hooked(model):
    model.lm_head.register_forward_hook(lambda *_: None)


def with_other_loss(model):
    model.loss_function = stock().loss_function


def with_other_head(model):
    model.lm_head = nn.Sequential(model.lm_head)


def with_patched_head(model):
    model.lm_head.forward = model.lm_head.forward


@pytest.mark.parametrize(
    "change", [nn.Module.eval, hooked, with_other_loss, with_other_head, with_patched_head]
)
def test_logits_are_there_for_who_reads_them(change):
    expected = stock()(tokens(), labels=tokens())
    model = put_in_kernels(stock())
    change(model)
    got = model(tokens(), labels=tokens())
    torch.testing.assert_close(got.logits, expected.logits, **CLOSE)
    torch.testing.assert_close(got.loss, expected.loss, **CLOSE)


def test_a_head_may_have_a_bias():
    torch.manual_seed(2)
    head = nn.Linear(32, 256)
    losses, slopes = [], []
    for prepare in (lambda model: model, put_in_kernels):
        model = stock()
        model.lm_head = copy.deepcopy(head)
        loss = prepare(model)(tokens(), labels=tokens()).loss
        loss.backward()
        losses.append(loss.detach())
        slopes.append(model.lm_head.bias.grad)
    torch.testing.assert_close(losses[1], losses[0], **CLOSE)
    torch.testing.assert_close(slopes[1], slopes[0], **CLOSE)


@pytest.mark.parametrize("given", [True, False, None])
def test_results_are_named_or_a_tuple(given):
    expecting, model = stock(), put_in_kernels(stock())
    for options in ({}, {"labels": tokens()}):
        found = [type(m(tokens(), return_dict=given, **options)) for m in (expecting, model)]
        assert found[0] is found[1]


def test_labels_may_come_by_place_and_results_as_a_tuple():
    expected = stock()(tokens(), labels=tokens(), return_dict=False)
    model = put_in_kernels(stock())
    got = model(tokens(), labels=tokens(), return_dict=False)
    torch.testing.assert_close(got[:2], expected[:2], **CLOSE)
    by_place = model(tokens(), *[None] * 7, tokens())
    torch.testing.assert_close(by_place.logits, expected[1], **CLOSE)


def test_arguments_can_be_listed():
    """The Trainer lists the arguments of forward to choose columns of its data."""
    forward = put_in_kernels(stock()).forward
    assert inspect.signature(forward) == inspect.signature(stock().forward)


def test_an_activation_that_has_no_kernel_is_named():
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, activation_function="tanh")
    with pytest.raises(ValueError, match="activation_function is 'tanh', expected one of gelu_new"):
        put_in_kernels(GPT2LMHeadModel(config))


@pytest.mark.cuda
@each_step
def test_gradients_agree_on_a_gpu(step):
    models = stock().cuda(), with_steps(stock().cuda(), step)
    ids = tokens().cuda()
    for model in models:
        model(ids, labels=ids).loss.backward()
    torch.testing.assert_close(gradients(models[1]), gradients(models[0]), rtol=1e-3, atol=1e-4)


@pytest.mark.cuda
def test_a_step_under_autocast():
    losses = []
    for model in (stock().cuda(), put_in_kernels(stock().cuda())):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens().cuda(), labels=tokens().cuda(), use_cache=False).loss
        loss.backward()
        assert all(x.grad.isfinite().all() for x in model.parameters())
        losses.append(loss.detach())
    torch.testing.assert_close(losses[1], losses[0], rtol=2e-2, atol=0.0)
