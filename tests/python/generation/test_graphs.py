# SPDX-License-Identifier: MIT
"""tfk.generate and tfk.engine with steps that are replayed: on a CPU the same function runs again
over the same tensors, in place of a graph."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import transformer_kernels as tfk
from transformer_kernels import models
from transformer_kernels.decode import Parameters, _attention, _static

from .conftest import CONTEXT, VOCABULARY, hugging_face, prompt
from .test_generate import assert_greedy, gpt2, language_model

NEW = 20
BLOOM = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=2)
# Operations for which the host waits, or that bring it numbers of the device.
WAITING = {
    "aten._local_scalar_dense.default", "aten.nonzero.default", "aten.masked_select.default",
    "aten.equal.default", "aten.lift_fresh.default",
}  # fmt: skip


class Refusing(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = [x for x in (args[1] if str(func) == "aten.index.Tensor" else ()) if x is not None]
        if str(func) in WAITING or any(x.dtype is torch.bool for x in masks):
            raise RuntimeError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


class Watched(_static.Rerun):
    def replay(self) -> None:
        with Refusing():
            super().replay()


@pytest.fixture(autouse=True)
def _watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs' stand-in on a CPU, where rows are added as on a GPU and the formula attends, which
    takes them. Transformers knows when a graph is captured."""
    if not torch.cuda.is_available():
        attend = partial(_attention.attention_with_kv_cache, backend="reference")
        monkeypatch.setattr(_attention, "attention_with_kv_cache", attend)
        monkeypatch.setattr(_static.StaticSteps, "padded_on", ("cpu", "cuda"))
    monkeypatch.setattr(_static, "Rerun", Watched)
    monkeypatch.setattr(transformers.masking_utils, "is_tracing", lambda *_: True)


def llama(**options: Any) -> models.Llama:
    config = models.LlamaConfig(
        vocab_size=VOCABULARY, context=CONTEXT, dim=64, num_layers=2, num_heads=4, num_kv_heads=2,
        inner_dim=96, **options,
    )  # fmt: skip
    return models.Llama(config)


def packed() -> models.Llama:
    return tfk.quantize(llama(), bits=8)


def fused() -> Any:
    model = hugging_face("llama3")
    tfk.fuse(model, prompt(1, 8), measure=False)
    return model


MODELS: dict[str, Any] = {
    "llama": llama,
    "llama with a window": lambda: llama(sliding_window=5, qk_norm=True, qkv_bias=True),
    "packed": packed,
    "language model": language_model,
    "rotations": lambda: language_model(positions="rope", num_kv_heads=1),
    "stock kernels": lambda: models.LanguageModel(language_model().config, kernels="torch"),
    "transformers": lambda: hugging_face("mistral"),
    "fused": fused,
    "gpt2": gpt2,
}


def logits_of(model: Any) -> Any:
    def logits(tokens: Tensor) -> Tensor:
        found = model(tokens)
        whole: Tensor = getattr(found, "logits", found)
        return whole

    return logits


def is_kept(model: nn.Module) -> bool:
    return getattr(model.__dict__.get("_tfk_decoding"), "decoder", None) is not None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_greedy_tokens(name: str, device: str) -> None:
    model = MODELS[name]().eval().to(device)
    kind = getattr(model.config, "_attn_implementation", None)
    for batch, chunk in ((3, 4), (3, 64), (1, 7)):
        tokens = prompt(batch).to(device)
        found = tfk.generate(model, tokens, NEW, chunk=chunk, graphs=True)
        assert found.shape == (batch, 11 + NEW)
        assert torch.equal(found[:, :11], tokens)
        assert_greedy(found, logits_of(model), 11)
        assert is_kept(model)
    assert getattr(model.config, "_attn_implementation", None) == kind
    engine = tfk.engine(model, num_pages=16, max_sequences=4, page_size=16, graphs=True)
    prompts = [prompt(1, length)[0].tolist() for length in (1, 17, 9)]
    for text, result in zip(
        prompts, engine.generate(prompts, Parameters(max_new_tokens=NEW)), strict=True
    ):
        whole = torch.tensor([text + result.tokens], device=device)
        assert_greedy(whole, logits_of(model), len(text))
    assert engine._ahead is not None
    assert {shape.rows for shape in engine._ahead._steps._steps} >= {4}


@torch.no_grad()
def test_draws_are_those_of_the_generator(device: str) -> None:
    """Seeds are those that are drawn without graphs. In float64 rounding changes no token."""
    model = llama().double().to(device)

    def run(graphs: bool) -> tuple[Tensor, Tensor]:
        source = torch.Generator(device).manual_seed(7)
        found = tfk.generate(
            model, tokens, NEW, temperature=0.5, top_k=9, generator=source, graphs=graphs
        )
        return found, source.get_state()

    tokens = prompt(2).to(device)
    (a, state), (b, expected) = run(True), run(False)
    assert torch.equal(state, expected)
    assert torch.equal(a, b)


@torch.no_grad()
def test_sequences_end_at_stops(device: str) -> None:
    model = llama().to(device)
    tokens = prompt(4).to(device)
    free = tfk.generate(model, tokens, NEW, graphs=True)[:, 11:]
    stop = [int(free[0, 4]), int(free[1, 9])]
    seen: list[Tensor] = []
    found = tfk.generate(
        model, tokens, NEW, stop=stop, stream=lambda step: seen.append(step.clone()), graphs=True
    )[:, 11:]
    assert torch.equal(torch.stack(seen, 1), found)
    expected = free.clone()
    for row in expected:
        ends = torch.isin(row, torch.tensor(stop, device=device)).nonzero()
        if len(ends):
            row[ends[0, 0] :] = row[ends[0, 0]].item()
    assert torch.equal(found, expected[:, : found.shape[1]])


@torch.no_grad()
def test_guesses_are_taken_back(device: str) -> None:
    model = llama().to(device)
    tokens = prompt(1, 3).repeat(1, 3).to(device)
    found = tfk.generate(model, tokens, NEW, speculate=3, graphs=True)
    assert_greedy(found, logits_of(model), tokens.shape[1])


@torch.no_grad()
def test_a_model_that_moves_is_recorded_again(device: str) -> None:
    model, tokens = llama().to(device), prompt().to(device)
    tfk.generate(model, tokens, NEW, graphs=True)
    other = llama().to(device)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = its.data.clone()
    assert_greedy(tfk.generate(model, tokens, NEW, graphs=True), logits_of(other), 11)
    tfk.quantize(model, bits=8)
    assert_greedy(tfk.generate(model, tokens, NEW, graphs=True), logits_of(model), 11)


@torch.no_grad()
def test_a_copy_of_the_model_keeps_nothing_of_it(device: str) -> None:
    model, tokens = llama().to(device), prompt().to(device)
    tfk.generate(model, tokens, NEW, graphs=True)
    copied = copy.deepcopy(model)
    assert is_kept(model)
    assert not is_kept(copied)
    assert_greedy(tfk.generate(copied, tokens, NEW, graphs=True), logits_of(model), 11)


@pytest.mark.parametrize("name", ["llama", "language model"])
def test_a_model_that_nobody_holds_is_freed_at_once(name: str, device: str) -> None:
    """With the decoder that it keeps, whose cache may be large."""
    model, tokens = MODELS[name]().to(device), prompt().to(device)
    for _ in range(2):
        tfk.generate(model, tokens, 3, graphs=True)
    assert is_kept(model)
    kept, gone = weakref.ref(model.__dict__["_tfk_decoding"].decoder), weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
        assert kept() is None
    finally:
        gc.enable()


def test_texts_in_inference_mode_and_outside(device: str) -> None:
    model, tokens = llama().to(device), prompt().to(device)
    with torch.inference_mode():
        tfk.generate(model, tokens, NEW, graphs=True)
    found = tfk.generate(model, tokens, NEW, graphs=True)
    with torch.no_grad():
        assert_greedy(found, logits_of(model), 11)


def test_modes_stay(device: str) -> None:
    model, tokens = language_model(dropout=0.5).to(device), prompt().to(device)
    model.transformer.layers[0].eval()
    modes = [module.training for module in model.modules()]
    found = tfk.generate(model, tokens, NEW, graphs=True)
    assert [module.training for module in model.modules()] == modes
    with torch.no_grad():
        assert_greedy(found, logits_of(model.eval()), 11)


@torch.no_grad()
def test_a_model_that_attends_by_itself_keeps_its_cache() -> None:
    model = transformers.BloomForCausalLM(BLOOM).eval()
    tokens = prompt()
    with pytest.warns(RuntimeWarning, match="BloomForCausalLM keeps its own cache, without graphs"):
        found = tfk.generate(model, tokens, 5, graphs=True)
    assert_greedy(found, logits_of(model), 11)


@pytest.mark.cuda
@pytest.mark.filterwarnings("error")
@torch.no_grad()
def test_graphs_are_the_default_on_cuda() -> None:
    served, other = llama().to("cuda"), transformers.BloomForCausalLM(BLOOM).to("cuda").eval()
    tokens = prompt().to("cuda")
    for model in (served, other):
        assert_greedy(tfk.generate(model, tokens, 5), logits_of(model), 11)
    assert is_kept(served)
    assert not is_kept(other)


def test_settings() -> None:
    model = llama()
    with pytest.raises(ValueError, match="generate: graphs is 2, expected True, False or 'auto'"):
        tfk.generate(model, prompt(), 3, graphs=2)  # type: ignore[arg-type]
    tfk.generate(model, prompt(), 3)
    assert not is_kept(model)
