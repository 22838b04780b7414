# SPDX-License-Identifier: MIT
"""GPT-2 with kernels put in computes the stock model's results also if its layers were replaced,
hooked into, pruned or quantised, or if its cache is longer than its contents."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules import module as of_all

pytest.importorskip("transformers")

from transformers import DynamicCache, StaticCache

from transformer_kernels.demo import gpt2
from transformer_kernels.demo.gpt2 import CACHE, STEPS, put_in_kernels
from transformer_kernels.demo.model import stock_model
from transformer_kernels.testing.modules import CHANGES, quantize, results

CLOSE = {"rtol": 1e-6, "atol": 1e-9}
TOKENS = torch.randint(256, (2, 8), generator=torch.Generator().manual_seed(5))
PLACES = (
    "transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head",
    *(f"transformer.h.1.{name}" for name in (
        "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj",
    )),
)  # fmt: skip
WITHOUT_WEIGHTS = ("attn.resid_dropout", "mlp.act", "mlp.dropout", "mlp")
OF_WEIGHTS = ("adapter", "pruned", "weight_norm", "parametrization")


def stock(layers: int = 2):
    return stock_model(layers=layers, width=32, heads=2, block=16, seed=3).double()


def loss_of(model):
    return model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss


def parent(model: nn.Module, place: str) -> tuple[nn.Module, str]:
    path, _, leaf = place.rpartition(".")
    return model.get_submodule(path), leaf


def compare(change) -> None:
    """Compares losses and gradients of both models after a change; kernels are put in before it or
    after it."""
    found = []
    for prepare, finish in ((None, None), (put_in_kernels, None), (None, put_in_kernels)):
        model = stock()
        if prepare:
            prepare(model)
        torch.manual_seed(5)
        log = change(model)
        if finish:
            finish(model)
        found.append((results(model, loss_of), list(log or ())))
    for given, log in found[1:]:
        assert log == found[0][1]
        assert given.keys() == found[0][0].keys()
        # Stock computes the loss of float64 in float32.
        torch.testing.assert_close(given, found[0][0], rtol=1e-4, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", PLACES)
def test_a_changed_layer_is_called(place, change):
    def apply(model):
        log: list[str] = []
        CHANGES[change](*parent(model, place), log)
        return log

    compare(apply)


@pytest.mark.parametrize("change", [name for name in CHANGES if name not in OF_WEIGHTS])
@pytest.mark.parametrize("place", WITHOUT_WEIGHTS)
def test_a_changed_layer_without_weights_is_called(place, change):
    def apply(model):
        log: list[str] = []
        CHANGES[change](*parent(model, f"transformer.h.0.{place}"), log)
        return log

    compare(apply)


@pytest.mark.parametrize("change", ["forward hook", "full backward hook"])
def test_a_changed_block_is_called(change):
    def apply(model):
        log: list[str] = []
        CHANGES[change](model.transformer.h, "1", log)
        return log

    compare(apply)


@pytest.mark.parametrize("place", ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"])
def test_a_quantised_weight_is_read_by_stock_code(place):
    compare(lambda model: quantize(*parent(model, f"transformer.h.0.{place}")))


def test_another_activation_runs():
    def apply(model):
        model.transformer.h[0].mlp.act = nn.Tanh()
        model.transformer.h[1].mlp.act = nn.ReLU()

    compare(apply)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_another_attention_runs(name, monkeypatch):
    expected = stock().eval()(TOKENS).logits
    model = put_in_kernels(stock().eval())
    model.set_attn_implementation(name)
    monkeypatch.setattr(gpt2, "attend", lambda *_: pytest.fail("attend is called"))
    torch.testing.assert_close(model(TOKENS).logits, expected, **CLOSE)


@pytest.mark.parametrize("options", [{"max_norm": 0.3}, {"padding_idx": 2}], ids=str)
@pytest.mark.parametrize("place", ["wte", "wpe"])
def test_options_of_a_table_are_kept(place, options):
    def apply(model):
        rows, columns = getattr(model.transformer, place).weight.shape
        table = nn.Embedding(rows, columns, **options).double()
        setattr(model.transformer, place, table)

    compare(apply)


@pytest.mark.parametrize(
    "register",
    [
        of_all.register_module_forward_pre_hook,
        of_all.register_module_forward_hook,
        of_all.register_module_full_backward_pre_hook,
        of_all.register_module_full_backward_hook,
    ],
)
def test_a_hook_of_all_modules_sees_each(register):
    seen = []
    for prepare in (lambda model: model, put_in_kernels):
        model, called = prepare(stock()), set()
        names = {module: name for name, module in model.named_modules()}
        handle = register(lambda m, *_, called=called, names=names: called.add(names.get(m)))
        try:
            loss_of(model).backward()
        finally:
            handle.remove()
        seen.append(called - {None})
    assert seen[1] == seen[0]
    assert len(seen[0]) > 25


def test_changes_come_and_go_between_calls():
    model, calls = put_in_kernels(stock()), []
    before = results(model, loss_of)
    handle = model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda *_: calls.append(1))
    results(model, loss_of)
    handle.remove()
    torch.testing.assert_close(results(model, loss_of), before, rtol=0, atol=0)
    assert len(calls) == 1


# ---- caches -------------------------------------------------------------------------------------


def caches(model, kind: str):
    return {
        "static": lambda: StaticCache(config=model.config, max_cache_len=16),
        "dynamic": lambda: DynamicCache(config=model.config),
    }[kind]()


def padding(side: str | None):
    if side is None:
        return None
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, slice(3) if side == "left" else slice(5, 8)] = 0
    return mask


@pytest.mark.parametrize("last", STEPS)
@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("side", [None, "left", "inside"])
@pytest.mark.parametrize("parts", [(12,), (8, 4), (8, 1, 1, 1, 1), (1, 7, 3, 1)], ids=str)
@torch.no_grad()
def test_prompts_and_steps_with_a_cache(last, kind, side, parts):
    tokens = TOKENS.repeat(1, 2)[:, :12]
    mask, found = padding(side), []
    for steps in ((), list(STEPS)[: list(STEPS).index(last) + 1]):
        model = stock().eval()
        for name in steps:
            STEPS[name](model)
        cache, end, logits = caches(model, kind), 0, []
        for part in tokens.split(parts, 1):
            end += part.shape[1]
            seen = None if mask is None else mask[:, :end]
            logits.append(model(part, attention_mask=seen, **{CACHE: cache}).logits)
        found.append(torch.cat(logits, 1))
    keep = slice(None) if mask is None else mask.bool()
    torch.testing.assert_close(found[1][keep], found[0][keep], **CLOSE)


@pytest.mark.parametrize("last", STEPS)
@torch.no_grad()
def test_a_prompt_whose_mask_reaches_over_the_cache(last):
    """The mask hides only places after the prompt, so no mask is made."""
    mask, found = torch.zeros(2, 16, dtype=torch.long), []
    mask[:, :8] = 1
    for steps in ((), list(STEPS)[: list(STEPS).index(last) + 1]):
        model = stock().eval()
        for name in steps:
            STEPS[name](model)
        found.append(model(TOKENS, attention_mask=mask, **{CACHE: caches(model, "static")}).logits)
    torch.testing.assert_close(found[1], found[0], **CLOSE)
