# SPDX-License-Identifier: MIT
"""The language model's own parts: cache, generation and inputs."""

from __future__ import annotations

import threading

import pytest
import torch

from .conftest import LANGUAGE, STYLES, language_model

PATIENCE = 120.0  # seconds; only a hang takes them
VOCABULARY, CONTEXT = LANGUAGE["vocab_size"], LANGUAGE["context"]
each_kernels = pytest.mark.parametrize("kernels", ["ours", "torch"])
each_style = pytest.mark.parametrize("style", STYLES)


def exact(*kinds: str) -> torch.nn.Module:
    """A model in float64, in which rounding makes no other token the likeliest."""
    return language_model(*kinds).double()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, CONTEXT))


@each_kernels
@each_style
@pytest.mark.parametrize("parts", [(CONTEXT,), (7, 1, 1, 10), (1,) * CONTEXT], ids=str)
@torch.no_grad()
def test_what_the_cache_holds_need_not_be_seen_again(kernels, style, parts, tokens, device):
    model = language_model(kernels, style).to(device)
    tokens = tokens.to(device)
    cache = model.new_cache(2)
    found = [model(part, cache=cache) for part in tokens.split(parts, 1)]
    assert cache.length == cache.capacity == CONTEXT
    torch.testing.assert_close(torch.cat(found, 1), model(tokens), rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_a_cache_is_one_allocation_and_forgets(tokens):
    model = language_model(num_heads=6, num_kv_heads=2)
    cache = model.new_cache(2, 12)
    assert cache.keys.shape == cache.values.shape == (2, 2, 12, 2, 4)
    place = cache.keys.data_ptr()
    first = model(tokens[:, :9], cache=cache)
    assert repr(cache) == "KeyValueCache(9 of 12 tokens, batch 2)"
    cache.length = 4
    again = model(tokens[:, 4:9], cache=cache)
    assert cache.keys.data_ptr() == place
    torch.testing.assert_close(again, first[:, 4:], rtol=1e-4, atol=1e-6)


@each_kernels
@each_style
@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 0.7, "top_k": 9, "top_p": 0.9}], ids=str
)
def test_writing_with_a_cache_and_without_is_the_same(kernels, style, options, tokens):
    model = exact(kernels, style)

    def write(use_cache: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(2)
        return model.generate(
            tokens[:, :3], 12, use_cache=use_cache, generator=generator, **options
        )

    written = write(use_cache=True)
    assert written.shape == (2, 15)
    assert torch.equal(written, write(use_cache=False))
    assert torch.equal(written[:, :3], tokens[:, :3])


def test_both_switches_write_the_same(tokens):
    ours, stock = exact("ours"), exact("torch")
    stock.load_state_dict(ours.state_dict())
    written = [model.generate(tokens[:, :4], 15, temperature=0) for model in (ours, stock)]
    assert torch.equal(*written)


def test_greedy_is_the_likeliest_at_every_step(tokens):
    model = exact()
    written = model.generate(tokens[:, :4], 10, temperature=0)
    with torch.no_grad():
        likeliest = model(written[:, :-1]).argmax(-1)
    assert torch.equal(written[:, 4:], likeliest[:, 3:])


def test_draws_are_repeatable(tokens):
    model = language_model()

    def write(seed: int) -> torch.Tensor:
        return model.generate(tokens[:, :1], 18, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(write(1), write(1))
    assert not torch.equal(write(1), write(2))


def test_a_stop_token_ends_a_sequence(tokens):
    model = exact()
    free = model.generate(tokens[:, :2], 12, temperature=0)
    stop = int(free[0, 6])
    written = model.generate(tokens[:, :2], 12, temperature=0, stop_token=stop)
    for row, wanted in zip(written, free, strict=True):
        ends = (wanted[2:] == stop).nonzero()
        end = 2 + int(ends[0]) + 1 if len(ends) else len(wanted)
        assert torch.equal(row[:end], wanted[: len(row)][:end])
        assert (row[end:] == stop).all()
    alone = model.generate(tokens[:1, :2], 12, temperature=0, stop_token=stop)
    assert alone.shape[1] <= 7
    assert alone[0, -1] == stop


def test_writing_leaves_the_model_as_it_was(tokens):
    model = language_model(dropout=0.5)
    model.transformer.layers[1].eval()
    modes = [module.training for module in model.modules()]
    written = [model.generate(tokens[:, :2], 10, temperature=0) for _ in range(2)]
    assert torch.equal(*written)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


class Pausing(torch.nn.Module):
    """An adapter with dropout that waits for other calls in its first ones."""

    def __init__(self, base, pauses):
        super().__init__()
        self.base, self.drop, self.pauses = base, torch.nn.Dropout(0.5), pauses

    def forward(self, x):
        if self.pauses:
            self.pauses.pop()()
        return self.drop(self.base(x))


def test_threads_write_without_dropout(tokens):
    """Two calls overlap, and the one that ends first leaves the other in evaluation."""
    model, prompt = language_model(dropout=0.5), tokens[:1, :2]
    layer = model.transformer.layers[0]
    layer.up = Pausing(layer.up, [])
    wanted = model.generate(prompt, 8, temperature=0)
    began, ended = threading.Event(), threading.Event()
    found = {}

    def second():
        found["second"] = model.generate(prompt, 8, temperature=0)

    # The second call waits inside itself until the first, which begins after it, has ended.
    layer.up.pauses[:] = [lambda: (began.set(), ended.wait(PATIENCE))]
    late = threading.Thread(target=second)
    late.start()
    assert began.wait(PATIENCE)
    found["first"] = model.generate(prompt, 1, temperature=0)
    assert not layer.up.drop.training  # the second still writes
    ended.set()
    assert model.training
    late.join(PATIENCE)
    assert torch.equal(found["second"], wanted)
    assert torch.equal(found["first"], wanted[:, :3])
    assert all(module.training for module in model.modules())


def test_writing_does_not_touch_the_mode_of_its_own_layers(tokens):
    model, modes = language_model(dropout=0.5), []
    names = [module for module in model.modules() if module is not model.head]
    model.head.register_forward_hook(lambda *_: modes.extend(m.training for m in names))
    model.generate(tokens[:, :2], 3)
    assert modes
    assert all(modes)
    assert not torch.equal(model(tokens), model(tokens))


def test_int32_and_nothing_to_write(tokens):
    model = language_model()
    assert torch.equal(model(tokens.int()), model(tokens))
    assert torch.equal(model.generate(tokens, 0), tokens)
    assert model.generate(tokens[:0, :2].int(), 3).shape == (0, 5)
    assert model.generate(tokens.int()[:, :2], 3).dtype is torch.int64


def test_targets_of_minus_100_count_nothing(tokens):
    for kernels in ("ours", "torch"):
        model = language_model(kernels)
        targets = tokens.roll(-1, 1)
        targets[:, 5:] = -100
        torch.testing.assert_close(model(tokens, targets), model(tokens[:, :5], targets[:, :5]))


@each_kernels
@each_style
def test_it_learns_a_rhythm(kernels, style):
    torch.manual_seed(0)
    model = language_model(kernels, style)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    rhythm = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6]).repeat(3)[:CONTEXT]
    window = rhythm.expand(4, -1)
    for _ in range(40):
        loss = model(window[:, :-1], window[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.1
    written = model.generate(window[:1, :4], CONTEXT - 4, temperature=0)
    assert torch.equal(written[0], rhythm)


@each_kernels
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(3), r"tokens has shape \(3,\), expected \(batch, time\)"),
        (torch.zeros(1, 2), "tokens is float32, expected int32 or int64"),
        ([[1]], "tokens is list, expected a Tensor"),
        (torch.zeros(1, 20).long(), r"tokens has 20 tokens, expected at most 19 \(the context\)"),
        (torch.tensor([[1, 37]]), r"tokens has the index 37, expected 0 to 36 \(the vocabulary\)"),
        (torch.tensor([[-1, 3]]), r"tokens has the index -1, expected 0 to 36"),
        (torch.zeros(1, 2, device="meta").long(), "tokens is on meta, expected cpu"),
    ],
    ids=["rank", "dtype", "no tensor", "long", "large", "negative", "device"],
)  # fmt: skip
def test_tokens_that_no_model_takes(kernels, tokens, message):
    with pytest.raises((ValueError, TypeError), match=f"^LanguageModel: {message}"):
        language_model(kernels)(tokens)


def test_an_index_out_of_range_is_an_index_error():
    with pytest.raises(IndexError):
        language_model()(torch.tensor([[99]]))


def test_targets_that_do_not_fit(tokens):
    with pytest.raises(ValueError, match=r"targets has shape \(2, 18\), expected \(2, 19\)"):
        language_model()(tokens, tokens[:, 1:])


def test_what_a_cache_is_not_for(tokens):
    model = language_model()
    cache = model.new_cache(2, 10)
    with pytest.raises(ValueError, match="cache is given, expected none where gradients"):
        model(tokens[:, :4], cache=cache)
    with torch.no_grad():
        with pytest.raises(ValueError, match="tokens has a batch of 1, expected 2"):
            model(tokens[:1, :4], cache=cache)
        model(tokens[:, :8], cache=cache)
        with pytest.raises(ValueError, match="tokens has 3 tokens, expected at most 2"):
            model(tokens[:, :3], cache=cache)
    assert cache.length == 8
    with pytest.raises(ValueError, match="LanguageModel: capacity is 0, expected at least 1"):
        model.new_cache(1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": torch.zeros(1, 20).long()}, "prompt has 20 tokens, expected 1 to 19"),
        ({"prompt": torch.zeros(1, 0).long()}, "prompt has 0 tokens, expected 1 to 19"),
        ({"prompt": torch.tensor([[40]])}, "prompt has the index 40, expected 0 to 36"),
        ({"max_new_tokens": 18}, "max_new_tokens is 18, expected 0 to 17"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1, expected 0 to 17"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5, expected an int"),
        ({"temperature": -0.1}, "temperature is -0.1, expected a finite number, 0 or above"),
        ({"temperature": float("nan")}, "temperature is nan, expected a finite number"),
        ({"temperature": float("inf")}, "temperature is inf, expected a finite number"),
        ({"top_p": float("nan")}, "top_p is nan, expected more than 0 and at most 1"),
        ({"temperature": "hot"}, "temperature is 'hot', expected a number"),
        ({"top_k": 0}, "top_k is 0, expected at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0, expected more than 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01, expected more than 0 and at most 1"),
        ({"stop_token": 37}, "stop_token is 37, expected 0 to 36"),
    ],
)  # fmt: skip
def test_what_cannot_be_written(arguments, message):
    given = {"prompt": torch.tensor([[1, 2]]), "max_new_tokens": 2, **arguments}
    with pytest.raises((ValueError, TypeError), match=f"LanguageModel.generate: {message}"):
        language_model().generate(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0, expected at least 1"),
        ({"context": 0}, "context is 0, expected at least 1"),
        ({"positions": "none"}, "positions is 'none', expected one of 'learned', 'rope'"),
        ({"positions": "rope", "dim": 9}, "dim is 9, expected an even number of channels in each"),
        ({"tie_weights": 1}, "tie_weights is 1, expected True or False"),
    ],
)
def test_what_no_language_model_can_be(options, message):
    with pytest.raises((ValueError, TypeError), match=f"LanguageModelConfig: {message}"):
        language_model(**options)
