# SPDX-License-Identifier: MIT
"""A cache in pages against Transformers' own: logits and tokens, in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import transformer_kernels as tfk
from transformer_kernels.integrations.cache import PagedTransformersCache
from transformer_kernels.integrations.transformers import ATTENTION

from .conftest import CAUSAL, VOCABULARY, tiny
from .test_transformers import CACHE

NEAR = {"rtol": 1e-4, "atol": 1e-4}  # norms and softmax of the models round to float32
# As the models' weights, so that no seed finds two tokens that are equally likely.
TOKENS = torch.randint(3, VOCABULARY, (2, 21), generator=torch.Generator().manual_seed(5))


def both(model: Any) -> tuple[Any, Any]:
    return DynamicCache(config=model.config), PagedTransformersCache(model.config)


def check(cache: PagedTransformersCache) -> None:
    """Nothing is lost, and what no token stands in can be anything."""
    cache.table.check()


def spoil(cache: PagedTransformersCache) -> None:
    """Writes NaN to every slot that holds no token."""
    places = cache.places(0, cache.get_seq_length())
    for layer in cache.layers:
        for store in layer.stores:
            unused = torch.ones(len(store)).bool()
            unused[places.flatten()] = False
            store[unused] = float("nan")


@pytest.mark.parametrize("attention", ["eager", ATTENTION])
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_logits_of_a_text_in_parts(name: str, attention: str) -> None:
    model = tiny(name, attention).double().eval()
    dynamic, paged = both(model)
    for part in TOKENS.split((6, 1, 13, 1), 1):
        expected, found = (
            model(part, use_cache=True, **{CACHE: cache}).logits for cache in (dynamic, paged)
        )
        torch.testing.assert_close(found, expected, **NEAR)
        assert paged.get_seq_length() == dynamic.get_seq_length()
        check(paged)
        spoil(paged)


def generated(model: Any, cache: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = TOKENS[:, :15]
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    model.generation_config.eos_token_id = None
    out = model.generate(
        tokens.masked_fill(mask == 0, 0), attention_mask=mask, max_new_tokens=8,
        output_logits=True, return_dict_in_generate=True, **{CACHE: cache}, **options,
    )  # fmt: skip
    return out.sequences, torch.stack(out.logits)


GENERATION = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "several": {"do_sample": True, "num_return_sequences": 3},
}


@pytest.mark.parametrize("kind", GENERATION)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3"])
def test_generated_tokens(name: str, kind: str) -> None:
    model = tiny(name, ATTENTION).double().eval()
    found = []
    for cache in both(model):
        torch.manual_seed(0)
        found.append(generated(model, cache, **GENERATION[kind]))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[1][1], found[0][1], **NEAR)
    check(cache)


def test_beams_share_pages() -> None:
    model = tiny("llama", ATTENTION).double().eval()
    cache = PagedTransformersCache(model.config)
    generated(model, cache, **GENERATION["beams"])
    cache.batch_select_indices(torch.tensor([0]))
    cache.batch_repeat_interleave(5)
    assert len({tuple(s.pages) for s in cache.sequences}) == 1
    assert cache.table.num_pages - cache.table.available_pages == len(cache.sequences[0].pages)
    check(cache)


def test_a_fused_model() -> None:
    model = tiny("llama", ATTENTION).eval()
    fused = copy.deepcopy(model)
    tfk.fuse(fused, TOKENS, measure=False)
    found = [generated(fused, cache, do_sample=False) for cache in both(model)]
    assert torch.equal(found[0][0], found[1][0])


def test_drafts_are_cropped() -> None:
    """Prompt lookup guesses tokens and takes the wrong ones back."""
    model = tiny("llama", ATTENTION).double().eval()
    model.generation_config.eos_token_id = None
    tokens = TOKENS[:1, :5].repeat(1, 3)
    options = {"max_new_tokens": 12, "do_sample": False}
    expected = model.generate(tokens, **options)
    cache = PagedTransformersCache(model.config)
    found = model.generate(tokens, prompt_lookup_num_tokens=3, **{CACHE: cache}, **options)
    assert torch.equal(found, expected)
    check(cache)


@pytest.mark.parametrize("name", ["llama", "mistral"])
@torch.no_grad()
def test_crop_select_repeat_reset(name: str) -> None:
    model = tiny(name, ATTENTION).double().eval()
    paged = PagedTransformersCache(model.config)

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens, use_cache=True, **{CACHE: paged}).logits[:, -1]

    def expected(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens, use_cache=False).logits[:, -1]

    logits(TOKENS[:, :18])
    paged.crop(-3)
    torch.testing.assert_close(logits(TOKENS[:, 2:3]), expected(TOKENS[:, [*range(15), 2]]), **NEAR)
    paged.batch_select_indices(torch.tensor([1]))
    paged.batch_repeat_interleave(3)
    assert paged.batch_size == 3
    ends = torch.tensor([[5], [6], [7]])
    texts = torch.cat([TOKENS[[1] * 3][:, [*range(15), 2]], ends], 1)
    torch.testing.assert_close(logits(ends), expected(texts), **NEAR)
    check(paged)
    paged.reset()
    assert paged.get_seq_length() == 0
    assert paged.table.available_pages == paged.table.num_pages
    torch.testing.assert_close(logits(TOKENS), expected(TOKENS), **NEAR)
    with pytest.raises(ValueError, match="crop: tokens_to_remove is 3, expected minus"):
        paged.crop(3)


def test_layers_of_another_kind_are_named() -> None:
    config = copy.deepcopy(tiny("llama").config)
    config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ValueError, match="layer 1 is 'linear_attention', expected 'full_attention"):
        PagedTransformersCache(config)
