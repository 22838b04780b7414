# SPDX-License-Identifier: MIT
"""The experts of Hugging Face's mixtures, with their own weights and routers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels import functional

transformers = pytest.importorskip("transformers", minversion="5.0")

VOCABULARY, LAYERS, HIDDEN = 61, 1, 32
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 24,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_experts_per_tok": 2, "moe_intermediate_size": 20, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_LATENT: dict[str, Any] = {
    **_COMMON, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 0, "n_group": 2, "topk_group": 1,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "Mixtral": {**_COMMON, "num_local_experts": 4},
    "Qwen2Moe": {**_COMMON, "num_experts": 4, "shared_expert_intermediate_size": 16},
    "Qwen3Moe": {**_COMMON, "num_experts": 6, "head_dim": 8},
    "Olmoe": {**_COMMON, "num_experts": 4},
    "DeepseekV2": {**_LATENT, "topk_method": "group_limited_greedy"},
    "DeepseekV3": _LATENT,
    "GptOss": {**_COMMON, "num_local_experts": 4, "head_dim": 8},
    "GraniteMoe": {**_COMMON, "num_local_experts": 4},
}


def made(name: str, implementation: str = "eager") -> Any:
    config = getattr(transformers, f"{name}Config")(**MODELS[name])
    config._experts_implementation = implementation
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() != 1:
            nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    ours = functional.moe_experts

    def counted(*args: Any, **options: Any) -> Any:
        found.append(args)
        return ours(*args, **options)

    monkeypatch.setattr(functional, "moe_experts", counted)
    return found


def ids() -> Any:
    """Draws the same in each run: a choice of experts jumps where two scores nearly tie."""
    return torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(5))


def fused(model: Any) -> tuple[Any, Any]:
    ours = copy.deepcopy(model)
    return ours, tfk.fuse(ours, ids(), measure=False)


@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_the_model(name: str, calls: list[Any]) -> None:
    """Logits and gradients of a step of training, and what the model generates."""
    stock = made(name)
    ours, plan = fused(stock)
    assert plan.counts()["experts"] == LAYERS, plan
    x = ids()
    with torch.no_grad():
        calls.clear()
        torch.testing.assert_close(ours(x).logits, stock(x).logits, rtol=1e-3, atol=1e-3)
        assert len(calls) == LAYERS
        options = {"max_new_tokens": 3, "do_sample": False}
        assert torch.equal(ours.generate(x, **options), stock.generate(x, **options))
    for model in (ours, stock):
        model.train()(x, labels=x).loss.backward()
    gradients = dict(ours.named_parameters())
    for key, parameter in stock.named_parameters():
        if parameter.grad is not None:
            mine = gradients[key].grad
            assert (mine - parameter.grad).norm() <= 1e-3 * parameter.grad.norm() + 1e-6, key
    assert {*ours.state_dict()} == {*stock.state_dict()}


@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
def test_other_implementations_of_transformers(implementation: str, calls: list[Any]) -> None:
    stock = made("GptOss", implementation)
    ours, plan = fused(stock)
    assert plan.counts()["experts"] == LAYERS
    calls.clear()
    x = ids()
    with torch.no_grad():
        torch.testing.assert_close(ours(x).logits, stock(x).logits, rtol=1e-3, atol=1e-3)
    assert len(calls) == LAYERS


def test_gradients_of_samples() -> None:
    """Each sample of torch.func.vmap chooses other experts: the model's own code runs."""
    stock = made("Mixtral", "grouped_mm")
    ours, _ = fused(stock)

    def gradients(model: Any) -> Any:
        def loss(weights: Any, row: Any) -> Any:
            return torch.func.functional_call(model, weights, (row[None],)).logits.square().mean()

        weights = {name: p.detach() for name, p in model.named_parameters()}
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, ids())

    found, expected = gradients(ours), gradients(stock)
    for name, gradient in expected.items():
        error = (found[name] - gradient).norm()
        assert error <= 1e-3 * gradient.norm() + 1e-6, name


def test_what_is_left() -> None:
    """An activation of another kind is refused in words, and so is a weight that changes."""
    model = made("Mixtral")
    for layer in model.model.layers:
        layer.mlp.experts.act_fn = nn.Softplus()
    plan = tfk.fuse(model, ids(), measure=False)
    assert "experts" not in plan.counts()
    assert [r.pattern for r in plan.refusals].count("experts") == LAYERS
    ours, _ = fused(made("Mixtral"))
    experts = ours.model.layers[0].mlp.experts
    experts.act_fn = nn.Softplus()
    with pytest.warns(RuntimeWarning, match="act_fn is no longer as it was"):
        ours(ids())
