# SPDX-License-Identifier: MIT
"""tfk.generate beside transformers' own, on every kind of model."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels import models
from transformer_kernels.generation import _step
from transformer_kernels.generation._lookup import Lookup

from .conftest import CONTEXT, KINDS, SIZES, VOCABULARY, hugging_face, prompt, saved

NEW = 12


def assert_greedy(found: Tensor, logits_of: Any, length: int, rounding: float = 1e-4) -> None:
    """Asserts that each new token is the likeliest, or as likely but for rounding."""
    logits = logits_of(found)[:, length - 1 : -1].double()
    chosen = logits.gather(-1, found[:, length:, None])[..., 0]
    gap = logits.amax(-1) - chosen
    assert float(gap.max()) <= rounding * float(logits.abs().max())


def language_model(**options: Any) -> models.LanguageModel:
    fields = {"vocab_size": VOCABULARY, "context": CONTEXT, "dim": 32, "num_layers": 2,
              "num_heads": 2, **options}  # fmt: skip
    return models.LanguageModel(models.LanguageModelConfig(**fields))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    stock = hugging_face(kind)
    model = models.Llama.from_pretrained(saved(stock, tmp_path))
    tokens = prompt()
    found = tfk.generate(model, tokens, NEW, chunk=4)
    expected = stock.generate(tokens, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    assert torch.equal(found[:, :11], tokens)
    assert_greedy(found, lambda whole: stock(whole).logits, 11)
    for row, other in zip(found, expected, strict=True):
        if not torch.equal(row, other):  # two tokens were equally likely but for rounding
            place = int((row != other).nonzero()[0])
            one = stock(row[None, :place]).logits[0, -1]
            assert abs(float(one[row[place]] - one[other[place]])) <= 1e-4 * float(one.abs().max())


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


@torch.no_grad()
def test_models_of_hugging_face_stock_and_fused() -> None:
    model, tokens = gpt2(), prompt(length=5)
    found = tfk.generate(model, tokens, NEW, chunk=2)
    assert_greedy(found, lambda whole: model(whole).logits, 5)
    tfk.fuse(model, {"input_ids": tokens}, measure=False)
    assert_greedy(tfk.generate(model, tokens, NEW), lambda whole: model(whole).logits, 5)


@torch.no_grad()
def test_language_model_and_its_own_generate() -> None:
    model = language_model().double().eval()
    tokens = prompt(length=5)
    found = tfk.generate(model, tokens, NEW)
    assert torch.equal(found, model.generate(tokens, NEW, temperature=0.0))
    assert_greedy(found, model, 5)


def test_modules_train_on_afterwards_and_dropout_is_off() -> None:
    model = language_model(dropout=0.5).train()
    tokens = prompt(length=5)
    assert torch.equal(tfk.generate(model, tokens, 6), tfk.generate(model, tokens, 6))
    assert model.training


@pytest.mark.parametrize("speculate", [0, 2])
def test_a_stream_that_raises_leaves_modes_as_they_were(speculate: int) -> None:
    """Also when what it raised, which holds the frames of the text, is forgotten."""
    model = language_model().train()

    def stream(_: Tensor) -> None:
        raise KeyError

    with pytest.raises(KeyError) as raised:
        tfk.generate(model, prompt(1, 5), NEW, speculate=speculate, stream=stream)
    assert torch.is_grad_enabled()
    assert all(module.training for module in model.modules())
    del raised
    gc.collect()
    assert torch.is_grad_enabled()


def test_the_stop_ends_a_sequence_and_the_stream_sees_all() -> None:
    model = language_model().eval()
    tokens = prompt(batch=1, length=5)
    whole = tfk.generate(model, tokens, NEW)[0, 5:].tolist()
    seen: list[int] = []
    stop = whole[3]
    ended = tfk.generate(model, tokens, NEW, stop=[stop], stream=lambda x: seen.extend(x.tolist()))
    assert seen == ended[0, 5:].tolist() == whole[: whole.index(stop) + 1]


class _Row:
    """Chooses tokens that are given, so that rows end at different steps."""

    def __init__(self, *steps: tuple[int, int]) -> None:
        self.steps = iter(steps)

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.tensor(next(self.steps))


def test_an_ended_row_is_filled_with_its_stop() -> None:
    chosen = _Row((3, 4), (5, 9), (7, 1), (8, 6))
    found = tfk.generate(language_model(), prompt(), 4, sampling=chosen, stop=(5, 6))
    assert found[:, 11:].tolist() == [[3, 5, 5, 5], [4, 9, 1, 6]]


class Letters:
    """A tokenizer whose tokens are characters."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(200 + token) for token in tokens)


@pytest.mark.parametrize("speculate", [0, 4])
def test_a_string_ends_a_sequence(speculate: int) -> None:
    model, batch = language_model().double(), 1 if speculate else 3  # rounding flips no token
    start = torch.randint(VOCABULARY, (batch, 5))
    free = tfk.generate(model, start, NEW)[:, 5:]
    texts = [Letters().decode(row.tolist()) for row in free]
    stop = texts[0][3:5]
    found = tfk.generate(
        model, start, NEW, stop_strings=["not there", stop], tokenizer=Letters(),
        speculate=speculate,
    )[:, 5:]  # fmt: skip
    for row, kept, text in zip(free, found, texts, strict=True):
        end = text.index(stop) + len(stop) if stop in text else NEW
        end = min(end, len(kept))  # all others may have ended
        assert torch.equal(kept[:end], row[:end])
        assert (kept[end:] == row[end - 1]).all()
    if batch == 1:
        assert len(found[0]) == texts[0].index(stop) + 2


def test_strings_need_a_tokenizer() -> None:
    model, start = language_model(), torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(ValueError, match="tokenizer is None, expected one beside stop_strings"):
        tfk.generate(model, start, 2, stop_strings="x")
    with pytest.raises(TypeError, match="stop_strings is '', expected strings that are not empty"):
        tfk.generate(model, start, 2, stop_strings="", tokenizer=Letters())
    with pytest.raises(TypeError, match=r"tokenizer\.decode is None, expected a fun"):
        tfk.generate(model, start, 2, stop_strings="x", tokenizer="gpt2")


def test_draws_follow_the_generator_and_top_k() -> None:
    model, tokens = language_model().eval(), prompt()
    draws = [
        tfk.generate(model, tokens, 6, temperature=1.0,
                     generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]  # fmt: skip
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])  # 12 draws of 101: equal once in 10^20
    greedy = tfk.generate(model, tokens, 6)
    assert torch.equal(tfk.generate(model, tokens, 6, temperature=1.0, top_k=1), greedy)


def test_guesses_follow_the_longest_words_that_stand_earlier() -> None:
    lookup = Lookup([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3])
    assert lookup.guess(3) == [4, 9, 2]  # 1 2 3 stands earlier, and longer than the later 2 3
    lookup.append(5)
    assert lookup.guess(2) == [1, 2]  # 2 3 5
    lookup.append(8)
    assert lookup.guess(2) == []
    assert Lookup([7]).guess(2) == []


@pytest.mark.parametrize("make", ["language_model", "llama", "gpt2"])
def test_speculation_writes_the_same_tokens(make: str) -> None:
    if make == "gpt2":
        model = gpt2()
    elif make == "llama":
        model = models.Llama(models.LlamaConfig.from_hugging_face({**SIZES, "model_type": "llama"}))
    else:
        model = language_model()
    model = model.double().eval()
    tokens = torch.randint(1, VOCABULARY, (1, 3)).repeat(1, 5)
    expected = tfk.generate(model, tokens, 30)
    assert torch.equal(tfk.generate(model, tokens, 30, speculate=5), expected)
    stop = int(expected[0, 20])
    ended = tfk.generate(model, tokens, 30, stop=stop)
    assert torch.equal(tfk.generate(model, tokens, 30, stop=stop, speculate=5), ended)


def test_speculation_reads_several_tokens_at_once() -> None:
    """A model that repeats itself takes a call for several tokens."""
    model = language_model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # token 0 is always the likeliest
    calls: list[int] = []
    model.tokens.register_forward_hook(lambda _, args, __: calls.append(args[0].shape[1]))
    tfk.generate(model, torch.zeros(1, 4, dtype=torch.long), 30, speculate=5)
    assert len(calls) <= 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": torch.zeros(1, 0, dtype=torch.long)}, "tokens has no token"),
        ({"tokens": torch.tensor([[VOCABULARY]])}, "tokens has the index 101"),
        ({"tokens": torch.tensor([3])}, "tokens has shape"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"max_new_tokens": CONTEXT}, f"max_new_tokens is {CONTEXT}, expected at most 54 behind"),
        ({"tokens": prompt(length=CONTEXT + 9)}, "max_new_tokens is 3, expected at most 0 behind"),
        ({"chunk": 0}, "chunk is 0"),
        ({"speculate": 2}, "speculate is 2"),
        ({"temperature": -1.0}, "temperature is -1"),
    ],
)
def test_arguments_are_checked(changes: dict[str, Any], message: str) -> None:
    arguments = {"tokens": prompt(), "max_new_tokens": 3, **changes}
    written: list[Tensor] = []
    with pytest.raises((ValueError, IndexError), match=message):
        tfk.generate(language_model(), **arguments, stream=written.append)
    assert not written


def test_tokens_may_fill_the_context() -> None:
    tokens = prompt(length=CONTEXT - 2)
    assert tfk.generate(language_model(), tokens, 3).shape == (2, CONTEXT + 1)


def test_other_models_are_refused() -> None:
    with pytest.raises(TypeError, match="model is Linear, expected"):
        tfk.generate(torch.nn.Linear(2, 2), prompt(), 3)


@pytest.mark.parametrize("bits", [4, 8])
@torch.no_grad()
def test_quantize_replaces_linear_layers(bits: int, tmp_path: Path) -> None:
    model = models.Llama.from_pretrained(saved(hugging_face("llama3"), tmp_path))
    expected = model(prompt(length=5))
    quantized = tfk.quantize(model, bits)
    assert quantized is model
    attention, head = model.model.layers[0].self_attn, model.lm_head
    assert isinstance(attention.q_proj, tfk.nn.QuantizedLinear)
    assert (attention.q_proj.bits, head.bits) == (bits, 8)
    assert isinstance(model.model.embed_tokens, torch.nn.Embedding)
    assert model(prompt(length=5)).shape == expected.shape
    with pytest.raises(ValueError, match="bits is 5"):
        tfk.quantize(model, 5)


@torch.no_grad()
def test_eight_bits_are_close(tmp_path: Path) -> None:
    model = models.Llama.from_pretrained(saved(hugging_face("llama2"), tmp_path))
    tokens = prompt(length=9)
    expected = model(tokens)
    error = (tfk.quantize(model, 8)(tokens) - expected).norm() / expected.norm()
    assert 0 < float(error) < 0.2


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_one_call_a_token_gives_the_models_logits(kind: str, tmp_path: Path) -> None:
    """Weights of 8 bits run in one call of C++ a token, whose cache has 16 bits."""
    folder = saved(hugging_face(kind), tmp_path)
    model = tfk.quantize(models.Llama.from_pretrained(folder), 8)
    assert _step.runs(model, 1) is (_step.is_built() and kind != "llama_bias")
    assert not _step.runs(model, 2)
    assert not _step.runs(models.Llama.from_pretrained(folder), 1)  # float32 stays exact
    if not _step.runs(model, 1):
        return
    tokens = prompt(batch=1, length=15)
    expected = model(tokens)
    decoder = _step.StepDecoder(model, 20)
    first = decoder.extend(tokens[:, :9], keep=9)
    decoder.rewind(7)
    found = torch.cat((first[:, :7], decoder.extend(tokens[:, 7:], keep=8)), 1)
    assert decoder.length == 15
    assert float((found - expected).norm() / expected.norm()) < 1e-2
    whole = tfk.generate(model, tokens, 6, speculate=3)
    assert_greedy(whole, model, 15, 1e-2)


def test_a_model_made_in_inference_mode_writes_the_same_tokens() -> None:
    config = models.LlamaConfig(
        vocab_size=VOCABULARY, context=CONTEXT, dim=32, num_layers=1, num_heads=2, inner_dim=48
    )
    usual = models.Llama(config, dtype=torch.bfloat16)
    tokens = prompt(1)
    with torch.inference_mode():
        model = models.Llama(config, dtype=torch.bfloat16)
        for _ in range(2):  # changed in place, which PyTorch does not count here
            for parameter in usual.parameters():
                torch.nn.init.normal_(parameter)
            model.load_state_dict(usual.state_dict())
            assert torch.equal(tfk.generate(model, tokens, NEW), tfk.generate(usual, tokens, NEW))


def test_weights_that_pytorch_does_not_see_changing_are_repacked() -> None:
    config = models.LlamaConfig(
        vocab_size=VOCABULARY, context=CONTEXT, dim=32, num_layers=1, num_heads=2, inner_dim=48
    )
    model, other = (models.Llama(config, dtype=torch.bfloat16) for _ in range(2))
    tokens = prompt(1)
    tfk.generate(model, tokens, NEW)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        mine.data.copy_(its.data)
    tfk.repack(model)
    assert torch.equal(tfk.generate(model, tokens, NEW), tfk.generate(other, tokens, NEW))


@torch.no_grad()
def test_guesses_in_a_sliding_window_of_hugging_face() -> None:
    model = hugging_face("mistral").double()
    tokens = prompt(1, 4).repeat(1, 4)
    whole = tfk.generate(model, tokens, 30, speculate=4)
    assert_greedy(whole, lambda text: model(text).logits, 16)
