# SPDX-License-Identifier: MIT
"""Models of Transformers in an engine: the tokens that their own ``generate`` gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import transformer_kernels as tfk
from transformer_kernels.decode import Engine, Parameters
from transformer_kernels.integrations.paged_model import PAGED_ATTENTION, PagedModel

from .conftest import CAUSAL, VOCABULARY, tiny

# As the models' weights, so that no seed finds two tokens that are equally likely.
GENERATOR = torch.Generator().manual_seed(7)
PROMPTS = [
    torch.randint(3, VOCABULARY, (length,), generator=GENERATOR).tolist()
    for length in (1, 20, 33, 7, 18)
]
PROMPTS[4][:16] = PROMPTS[1][:16]
NEW = 10


def alone(model: Any, prompt: list[int]) -> list[int]:
    tokens = model.generate(
        torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=None
    )
    return tokens[0, len(prompt) :].tolist()


def served(model: Any, **options: Any) -> list[list[int]]:
    paged = PagedModel(model)
    cache = paged.new_cache(**{"num_pages": 8, "max_sequences": 3, **options})
    for store in (cache.keys, cache.values):
        store.fill_(float("nan"))
    engine = Engine(paged, cache, max_tokens=16)
    results = engine.generate(PROMPTS, Parameters(max_new_tokens=NEW))
    cache.check()
    assert cache.available_pages == cache.num_pages
    return [result.tokens for result in results]


@pytest.mark.parametrize("name", CAUSAL)
def test_tokens_are_those_of_generate(name: str) -> None:
    model = tiny(name).double().eval()
    expected = [alone(model, prompt) for prompt in PROMPTS]
    assert served(model) == expected
    assert [alone(model, prompt) for prompt in PROMPTS[:2]] == expected[:2]  # by the same name


def test_the_last_of_several_gives_the_attention_back() -> None:
    """An engine goes on behind texts of ``generate``, which end."""
    model = tiny("llama").eval()
    tokens = torch.tensor([PROMPTS[1]])
    expected = tfk.generate(model, tokens, NEW)
    attention = model.config._attn_implementation
    engine = tfk.engine(model, 8)
    for graphs in (True, False, True):
        assert torch.equal(tfk.generate(model, tokens, NEW, graphs=graphs), expected)
        assert model.config._attn_implementation == PAGED_ATTENTION
        (result,) = engine.generate([PROMPTS[1]], Parameters(max_new_tokens=NEW))
        assert result.tokens == expected[0, -NEW:].tolist()
    again = tiny("llama").eval()
    again.load_state_dict(model.state_dict())
    again.set_attn_implementation(attention)
    assert torch.equal(tfk.generate(again, tokens, NEW, graphs=True), expected)
    assert again.config._attn_implementation == attention


def test_a_model_that_fails_gets_its_attention_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama").eval()
    attention = model.config._attn_implementation

    def new_cache(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("none is left")

    monkeypatch.setattr(PagedModel, "new_cache", new_cache)
    with pytest.raises(torch.OutOfMemoryError):
        tfk.generate(model, torch.tensor([PROMPTS[1]]), NEW, graphs=True)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_oss"])
def test_logits_in_float32(name: str) -> None:
    """Attention reads the pages in place; the tokens are given, so that no tie decides."""
    model = tiny(name).eval()
    texts = [[*prompt, *range(3, 3 + NEW)] for prompt in PROMPTS]
    with torch.no_grad():
        expected = [model(torch.tensor([text])).logits[0] for text in texts]
    paged = PagedModel(model)
    cache = paged.new_cache(num_pages=4, max_sequences=3, dtype=torch.float32)
    for store in (cache.keys, cache.values):
        store.fill_(float("nan"))

    def draw(logits: Any, draws: Any) -> Any:
        for row, one in zip(logits, draws, strict=True):
            prompt = list(one.tokens[: one.prompt_length])
            wanted = expected[PROMPTS.index(prompt)][len(one.tokens) - 1]
            scale = wanted.abs().max().item()
            torch.testing.assert_close(row, wanted, rtol=1e-3, atol=1e-4 * scale)
        return torch.tensor([3 + one.number for one in draws])

    engine = Engine(paged, cache, max_tokens=16, draw=draw)
    results = engine.generate(PROMPTS, Parameters(max_new_tokens=NEW))
    assert [r.tokens for r in results] == [[*range(3, 3 + NEW)]] * len(PROMPTS)


def test_heads_major_pages() -> None:
    model = tiny("llama").double().eval()
    expected = [alone(model, prompt) for prompt in PROMPTS]
    assert served(model, heads_major=True, page_size=64, num_pages=3) == expected


def test_a_fused_model() -> None:
    model = tiny("llama").double().eval()
    expected = [alone(model, prompt) for prompt in PROMPTS]
    tfk.fuse(model, torch.tensor([PROMPTS[1]]), measure=False)
    assert served(model) == expected


def test_a_model_with_attention_of_its_own_is_named() -> None:
    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(ValueError, match=f"{PAGED_ATTENTION}|may compute it by itself"):
        served(transformers.BloomForCausalLM(config))
