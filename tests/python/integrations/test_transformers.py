# SPDX-License-Identifier: MIT
"""attn_implementation="transformer_kernels": models against their own eager attention, in float64:
logits, gradients, generated tokens."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DataCollatorWithFlattening,
    DynamicCache,
    LlamaForCausalLM,
    StaticCache,
    masking_utils,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from transformer_kernels.integrations import _masks
from transformer_kernels.integrations.transformers import ATTENTION, attend, attention_forward
from transformer_kernels.ops.attention._ops import ATTENTION as OP
from transformer_kernels.testing.dispatch import CallsOf

from .conftest import CAUSAL, VOCABULARY, tiny

CLOSE = {"rtol": 1e-8, "atol": 1e-9}
NEAR = {"rtol": 1e-4, "atol": 1e-4}  # of models, whose norms and softmax round to float32
LENGTH = 11
# The name of the argument of keys and values, which Transformers 5.24 renamed.
CACHE = next(
    name for name in inspect.signature(LlamaForCausalLM.forward).parameters
    if name in ("cache", "past_key_values")
)  # fmt: skip
# As the models' weights, so that no seed finds two tokens that are equally likely.
TOKENS = torch.randint(3, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(5))
PADDING = {
    "none": None,
    "left": torch.tensor([[0] * 4 + [1] * 7, [1] * 11]),
    "right": torch.tensor([[1] * 7 + [0] * 4, [1] * 11]),
}

LOCAL = ("mistral", "gemma3", "gpt_oss")  # models with a sliding window
each_causal = pytest.mark.parametrize("name", CAUSAL)


def pair(name: str, **changes: Any) -> tuple[Any, Any]:
    """Eager attention and ours, on the same weights in float64."""
    return tuple(tiny(name, kind, **changes).double() for kind in ("eager", ATTENTION))


def compare(models: tuple[Any, Any], counted: Tensor | None = None, **inputs: Any) -> None:
    """Holds logits where ``counted``, and the gradients of all parameters, to eager's."""
    found, weights = [], None
    for model in models:
        model.eval().zero_grad()
        logits = model(**inputs).logits
        logits = logits if counted is None else logits[counted.bool()]
        weights = torch.randn_like(logits) if weights is None else weights
        (logits * weights).sum().backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append({"logits": logits.detach(), **gradients})
    eager, ours = found
    assert eager.keys() == ours.keys()
    for key, value in eager.items():
        assert value.isfinite().all(), key
        torch.testing.assert_close(
            ours[key], value, rtol=1e-4, atol=1e-5 * max(value.abs().max().item(), 1e-6),
            msg=lambda m, key=key: f"{key}: {m}",
        )  # fmt: skip


def calls_of(model: Any, **inputs: Any) -> list[dict[str, Any]]:
    """The arguments with which the kernel is called."""
    with torch.no_grad(), CallsOf(OP.raw.inference) as watch:
        model.eval()(**inputs)
    return [OP.given(call) for call in watch.calls]


# ---- models -------------------------------------------------------------------------------------


@each_causal
def test_decoders(name: str) -> None:
    models = pair(name)
    for padding in ("none", "left", "right") if name == "llama" else ("none", "left"):
        mask = PADDING[padding]
        compare(models, mask, input_ids=TOKENS, attention_mask=mask)
    assert len(calls_of(models[1], input_ids=TOKENS)) == 2


@pytest.mark.parametrize("padding", ["none", "right"])
def test_encoders(padding: str) -> None:
    compare(pair("bert"), input_ids=TOKENS, attention_mask=PADDING[padding])


@pytest.mark.parametrize("padding", ["none", "right"])
def test_position_biases_and_cross_attention(padding: str) -> None:
    mask, answer = PADDING[padding], TOKENS[:, 2:]
    compare(pair("t5"), input_ids=TOKENS, attention_mask=mask, decoder_input_ids=answer)


def test_sound() -> None:
    sound = torch.randn(2, 8, 16).double()
    compare(pair("whisper"), input_features=sound, decoder_input_ids=TOKENS)


@pytest.mark.parametrize("with_lengths", [False, True], ids=["positions", "lengths"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_packed_sequences(name: str, with_lengths: bool) -> None:
    """Sequences in one row are independent; given their lengths, no mask is read."""
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=with_lengths)
    rows = [{"input_ids": row.tolist()} for row in (TOKENS[0], TOKENS[1, :6], TOKENS[1, 2:])]
    packed = dict(collate(rows))
    packed |= {"labels": None, "use_cache": False}
    models = pair(name)
    compare(models, **packed)
    calls = calls_of(models[1], **packed)
    assert all((call["cu_seqlens_q"] is not None) == with_lengths for call in calls)
    assert all((call["mask"] is None) == with_lengths for call in calls)


# ---- caches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cache"),
    [*((name, "dynamic") for name in CAUSAL), *((name, "static") for name in ("gpt2", *LOCAL))],
)
def test_generated_tokens(name: str, cache: str) -> None:
    mask = PADDING["left"]
    tokens = TOKENS.masked_fill(mask == 0, 0)
    options = {"max_new_tokens": 5, "do_sample": False}
    if cache == "static":
        options["cache_implementation"] = cache
    found = []
    for model in pair(name):
        model.generation_config.eos_token_id = None
        model.generation_config.disable_compile = True
        out = model.eval().generate(
            tokens, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **options
        )
        found.append((out.sequences, torch.stack(out.logits)))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[1][1], found[0][1], **NEAR)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", *LOCAL])
@torch.no_grad()
def test_a_prompt_in_parts(name: str, kind: str) -> None:
    """Into an empty cache, which may be longer than the prompt, and behind keys that are there."""
    found = []
    for model in pair(name):
        if kind == "static":
            cache: Any = StaticCache(config=model.config, max_cache_len=24)
        else:
            cache = DynamicCache(config=model.config)
        logits = [
            model.eval()(part, use_cache=True, **{CACHE: cache}).logits
            for part in TOKENS.split((6, 4, 1), 1)
        ]
        found.append(torch.cat(logits, 1))
    torch.testing.assert_close(found[1], found[0], **NEAR)


def test_a_prompt_behind_a_cache_and_a_window_need_no_mask() -> None:
    model = tiny("mistral", ATTENTION)
    cache = DynamicCache(config=tiny("llama").config)
    for tokens, top_left in ((TOKENS[:, :6], True), (TOKENS[:, 6:], False)):
        calls = calls_of(model, input_ids=tokens, use_cache=True, **{CACHE: cache})
        assert len(calls) == 2
        for call in calls:
            assert call["mask"] is None
            assert (call["window_left"], call["window_right"]) == (3, 0)
            assert call["top_left"] is top_left


def test_padding_takes_a_mask() -> None:
    mask = PADDING["left"]
    for call in calls_of(tiny("mistral", ATTENTION), input_ids=TOKENS, attention_mask=mask):
        assert call["mask"] is not None
    full = torch.ones_like(mask)
    for call in calls_of(tiny("mistral", ATTENTION), input_ids=TOKENS, attention_mask=full):
        assert call["mask"] is None


# ---- masks that are bands -----------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize(("queries", "keys", "first"), [(5, 5, 0), (3, 7, 4), (3, 7, 0), (3, 9, 4)])
def test_a_noted_band_shows_the_keys_of_its_mask(
    window: int | None, queries: int, keys: int, first: int
) -> None:
    function = (
        masking_utils.causal_mask_function
        if window is None
        else masking_utils.sliding_window_causal_mask_function(window)
    )
    mask = _masks.attention_mask(
        batch_size=1, q_length=queries, kv_length=keys, q_offset=first, mask_function=function,
        local_size=window, allow_is_causal_skip=False,
    )  # fmt: skip
    q, k, v = (torch.randn(1, 2, n, 8).double() for n in (queries, keys, keys))
    with CallsOf(OP.raw.inference) as watch:
        found, _ = attend(None, q, k, v, mask)
    expected, _ = sdpa_attention_forward(torch.nn.Module(), q, k, v, mask)
    torch.testing.assert_close(found, expected, **CLOSE)
    (call,) = (OP.given(call) for call in watch.calls)
    assert (call["mask"] is None) == (first in (0, keys - queries))


def test_other_masks_are_no_bands() -> None:
    causal, window = (
        masking_utils.causal_mask_function, masking_utils.sliding_window_causal_mask_function,
    )  # fmt: skip
    assert _masks.is_same_function(window(3), window(3))
    others = (
        causal, window(4), masking_utils.sliding_window_overlay(3), len,
        masking_utils.and_masks(window(3)), masking_utils.or_masks(window(3), causal),
    )  # fmt: skip
    assert not any(_masks.is_same_function(window(3), other) for other in others)
    sizes = {"q_length": 5, "kv_length": 5, "local_size": 3}
    assert _masks._band(**sizes, mask_function=window(4)) is None
    assert _masks._band(**sizes, mask_function=causal, q_offset=torch.tensor(0)) is None


def test_a_mask_that_was_changed_in_place_is_read() -> None:
    mask = _masks.attention_mask(
        batch_size=1, q_length=4, kv_length=4, allow_is_causal_skip=False
    ).clone()
    q, k, v = (torch.randn(1, 2, 4, 8).double() for _ in range(3))
    for changed in (mask, _masks.mark_band(mask, _masks.Band((-1, 0), True))):
        changed[..., 0] = changed[..., 3] = True
        found, _ = attend(None, q, k, v, changed)
        expected, _ = sdpa_attention_forward(torch.nn.Module(), q, k, v, changed)
        torch.testing.assert_close(found, expected, **CLOSE)


# ---- single calls -------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (5, 7), (5, 5), (7, 5)])
@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_without_a_mask(queries: int, keys: int, is_causal: bool, bias: bool) -> None:
    module = torch.nn.Module()
    q, k, v = (torch.randn(2, 2, n, 16).double() for n in (queries, keys, keys))
    options: dict[str, Any] = {"scaling": 0.3, "is_causal": is_causal}
    if bias:
        options["position_bias"] = torch.randn(1, 2, queries, keys).double()
    expected, _ = sdpa_attention_forward(module, q, k, v, None, **options)
    found, _ = attend(module, q, k, v, None, **options)
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [torch.bool, torch.float32, torch.bfloat16], ids=str)
def test_masks_of_every_dtype(kind: torch.dtype, low: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 2, 5, 16, dtype=low) for _ in range(3))
    seen = torch.rand(2, 1, 5, 5) < 0.7
    seen[..., 0] = True
    mask = seen if kind is torch.bool else torch.where(seen, 0.0, torch.finfo(kind).min).to(kind)
    bias = torch.randn(1, 2, 5, 5)
    found, _ = attend(None, q, k, v, mask, position_bias=bias)
    exact, _ = sdpa_attention_forward(
        torch.nn.Module(), q.double(), k.double(), v.double(), seen, position_bias=bias.double()
    )
    theirs, _ = sdpa_attention_forward(torch.nn.Module(), q, k, v, seen, position_bias=bias.to(low))
    assert found.dtype is low
    least = 1e-5 if low is torch.float32 else 1e-2
    assert (found - exact).abs().max() <= 2 * (theirs - exact).abs().max() + least


def test_dropout_in_training() -> None:
    """A seed determines the result, and the mean over many seeds is that without dropout."""
    model = tiny("gpt2", ATTENTION, attn_pdrop=0.5, resid_pdrop=0.0, embd_pdrop=0.0).double()
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(model(TOKENS).logits.detach())
    assert torch.equal(runs[0], runs[1])
    assert not torch.allclose(runs[0], runs[2])
    q, k, v = (torch.randn(1, 1, 6, 8).double() for _ in range(3))
    mean = sum(attend(None, q, k, v, None, dropout=0.25)[0] for _ in range(2000)) / 2000
    torch.testing.assert_close(mean, attend(None, q, k, v, None)[0], rtol=0, atol=0.2)


def test_what_only_sdpa_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Head dims above 256, and queries of one batch for all, with grouped heads and a mask."""
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    for dim, batch in ((264, 2), (8, 1)):
        q, k, v = torch.randn(batch, 4, 5, dim), *torch.randn(2, 2, 2, 5, dim)
        mask = torch.rand(2, 1, 5, 5) < 0.7
        mask[..., 0] = True  # no query sees nothing, of which versions of PyTorch make NaN
        found, weights = attention_forward(module, q, k, v, mask, scaling=0.1)
        expected, _ = sdpa_attention_forward(module, q, k, v, mask, scaling=0.1)
        assert weights is None
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["indices", "block_indices", "sinks"])
@pytest.mark.parametrize("dim", [8, 264])
def test_scores_that_no_argument_describes_are_refused(name: str, dim: int) -> None:
    q = torch.randn(1, 2, 3, dim)
    with pytest.raises(ValueError, match=f"attention: {name} is given, expected None"):
        attention_forward(torch.nn.Module(), q, q, q, None, **{name: torch.zeros(1)})


def test_a_soft_cap_is_never_left_out() -> None:
    q = torch.randn(1, 2, 3, 264)
    with pytest.raises(ValueError, match="attention: q has"):
        attention_forward(torch.nn.Module(), q, q, q, None, softcap=2.0)


def test_attention_weights_are_told_about() -> None:
    """As with sdpa: the configuration refuses, and a call returns none."""
    model = tiny("llama", ATTENTION).eval()
    with pytest.raises(ValueError, match="output_attentions"):
        model.config.output_attentions = True
    out = model(TOKENS, output_attentions=True)
    assert out.attentions is None or not any(isinstance(a, Tensor) for a in out.attentions)
    model.set_attn_implementation("eager")
    assert model(TOKENS, output_attentions=True).attentions[0].shape == (2, 4, LENGTH, LENGTH)


# ---- models as they are used --------------------------------------------------------------------


def test_checkpointing_copies_and_low_precision() -> None:
    eager, ours = (model.float() for model in pair("qwen3"))
    ours.gradient_checkpointing_enable()
    for model in (eager, copy.deepcopy(ours)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(TOKENS, labels=TOKENS, use_cache=False).loss
        loss.backward()
        assert loss.isfinite()
    with torch.no_grad():
        exact, narrow = eager.double()(TOKENS).logits, ours.bfloat16()(TOKENS).logits
        theirs = eager.bfloat16()(TOKENS).logits
    assert (narrow - exact).abs().max() <= 2 * (theirs - exact).abs().max()


def test_compiled() -> None:
    torch._dynamo.reset()
    model = tiny("gpt2", ATTENTION, n_layer=1).eval()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(TOKENS).logits, model(TOKENS).logits)


def test_set_and_saved(tmp_path: Any) -> None:
    """The name is no part of what is saved."""
    model = tiny("llama").eval()
    expected = model(TOKENS).logits
    model.set_attn_implementation(ATTENTION)
    torch.testing.assert_close(model(TOKENS).logits, expected)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation=ATTENTION)
    torch.testing.assert_close(loaded.eval()(TOKENS).logits, expected)
    assert ATTENTION not in (tmp_path / "config.json").read_text()
