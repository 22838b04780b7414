# SPDX-License-Identifier: MIT
"""tfk.engine: the logits of every step are those of the whole text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transformer_kernels as tfk
from transformer_kernels import models
from transformer_kernels.decode import Draw, Parameters
from transformer_kernels.generation import _step

from .conftest import KINDS, VOCABULARY, hugging_face, saved

LENGTHS, NEW = (1, 19, 9), 8


def check_logits(model: Any, whole: Any, tolerance: float = 1e-4, **options: Any) -> None:
    """Serves prompts and gives them random tokens; compares logits with ``whole`` (T) -> (T, V)."""
    texts = [torch.randint(VOCABULARY, (length + NEW,)).tolist() for length in LENGTHS]
    expected = {tuple(t[:n]): whole(torch.tensor(t)) for t, n in zip(texts, LENGTHS, strict=True)}

    def draw(logits: Tensor, draws: list[Draw]) -> Tensor:
        tokens = []
        for row, one in zip(logits, draws, strict=True):
            prompt = tuple(one.tokens[: one.prompt_length])
            wanted = expected[prompt][len(one.tokens) - 1]
            far = (row.double() - wanted.double()).abs().max()
            assert float(far) <= tolerance * float(expected[prompt].abs().max())
            text = next(t for t in texts if tuple(t[: len(prompt)]) == prompt)
            tokens.append(text[len(one.tokens)])
        return torch.tensor(tokens)

    engine = tfk.engine(model, num_pages=6, max_sequences=2, max_tokens=7, draw=draw, **options)
    prompts = [text[:length] for text, length in zip(texts, LENGTHS, strict=True)]
    results = engine.generate(prompts, Parameters(max_new_tokens=NEW))
    assert [r.tokens for r in results] == [t[n:] for t, n in zip(texts, LENGTHS, strict=True)]
    engine.cache.check()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_llama(kind: str, tmp_path: Path) -> None:
    stock = hugging_face(kind)
    model = models.Llama.from_pretrained(saved(stock, tmp_path))
    check_logits(model, lambda text: stock(text[None]).logits[0])
    check_logits(model.double(), lambda text: stock(text[None]).logits[0])


@torch.no_grad()
def test_packed_weights(tmp_path: Path) -> None:
    model = models.Llama.from_pretrained(saved(hugging_face("llama2"), tmp_path))
    tfk.quantize(model, bits=8)
    check_logits(model, lambda text: model(text[None])[0], 1e-3, page_size=16)


@torch.no_grad()
@pytest.mark.skipif(not _step.is_built(), reason="the native library is missing")
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_one_call_a_step_gives_each_request_the_tokens_it_gets_alone(bits: int) -> None:
    """Prompts begin alike, so that pages are shared, and are longer than a step, so that they come
    in parts; some requests have to give their pages up."""
    config = models.LlamaConfig(
        vocab_size=VOCABULARY, context=256, dim=64, num_layers=2, num_heads=4, num_kv_heads=2,
        inner_dim=96,
    )  # fmt: skip
    model = models.Llama(config, dtype=torch.bfloat16)
    if bits < 16:
        tfk.quantize(model, bits=bits)
    engine = tfk.engine(model, num_pages=5, max_sequences=3, max_tokens=50)
    assert engine.cache.page_size == 64
    beginning = torch.randint(VOCABULARY, (70,)).tolist()
    prompts = [beginning + torch.randint(VOCABULARY, (n,)).tolist() for n in (1, 57, 30, 110, 5)]
    results = engine.generate(prompts, Parameters(max_new_tokens=40))
    for prompt, result in zip(prompts, results, strict=True):
        alone = tfk.generate(model, torch.tensor([prompt]), 40)[0, len(prompt) :]
        assert result.tokens == alone.tolist()
    assert engine.status.found > 0
    assert engine.status.given_up > 0
    engine.cache.check()


@torch.no_grad()
@pytest.mark.skipif(not _step.is_built(), reason="the native library is missing")
def test_one_call_a_step_copies_pages_of_forks() -> None:
    config = models.LlamaConfig(
        vocab_size=VOCABULARY, context=64, dim=32, num_layers=1, num_heads=2, inner_dim=32
    )
    model = models.Llama(config, dtype=torch.bfloat16)
    cache: Any = tfk.engine(model, num_pages=2).cache
    text = torch.randint(VOCABULARY, (9,)).tolist()

    def logits(sequence: Any, tokens: list[int]) -> Tensor:
        cache.reserve(sequence, len(tokens))
        table, lengths = cache.block_tables[[sequence.row]], cache.lengths[[sequence.row]]
        ends = torch.tensor([0, len(tokens)], dtype=torch.int32)
        found: Tensor = cache.memory.step(tokens, ends, lengths, table, [len(tokens) - 1])
        cache.commit(sequence, tokens)
        return found

    first = cache.open()
    logits(first, text[:8])
    second = cache.fork(first)
    logits(first, [(text[8] + 1) % VOCABULARY])
    forked = logits(second, text[8:])  # what the other wrote is not in its page
    cache = tfk.engine(model, num_pages=1).cache
    assert torch.equal(forked, logits(cache.open(), text))


@torch.no_grad()
def test_a_model_of_transformers() -> None:
    stock = hugging_face("llama2")
    check_logits(stock, lambda text: stock(text[None]).logits[0])


def test_other_models_are_named() -> None:
    with pytest.raises(TypeError, match="engine: model is Linear, expected a Llama, a Lang"):
        tfk.engine(nn.Linear(2, 2))


def test_the_usual_cache_and_the_vocabulary() -> None:
    config = models.LlamaConfig(
        vocab_size=9, context=50, dim=8, num_layers=1, num_heads=1, inner_dim=8
    )
    engine = tfk.engine(models.Llama(config), max_sequences=2)
    with pytest.raises(ValueError, match="submit: prompt_tokens has token 9, expected less than 9"):
        engine.submit([1, 9, 8])
    cache = engine.cache
    assert (cache.num_pages, cache.max_length, cache.max_sequences) == (256, 50, 2)
