# SPDX-License-Identifier: MIT
"""Arguments of a wrong type: the error is ours, and names the argument."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels import functional as F
from transformer_kernels._errors import is_ours
from transformer_kernels.decode import Engine, PagedCache, PageTable, Parameters
from transformer_kernels.decode.step import StepPlan, StepSession, barrier_nanoseconds

STRANGE: tuple[Any, ...] = (
    None, "x", [], [None], {}, 1.5, -1, True, object(), torch.nan, torch.zeros(2), torch.zeros(()),
    torch.zeros(2, dtype=torch.complex64), 10**30,
)  # fmt: skip
SIZES = {"hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "inner": 64, "vocab": 96}


@cache
def model() -> tfk.models.Llama:
    config = tfk.models.LlamaConfig(
        vocab_size=64, context=64, dim=32, inner_dim=64, num_layers=1, num_heads=4, num_kv_heads=2
    )
    return tfk.models.Llama(config).eval()


@cache
def engine() -> Engine:
    return tfk.engine(model(), 8)


@cache
def plan() -> StepPlan:
    made = new_plan()
    made.finish(embedding=torch.eye(96, 32), final_norm=torch.ones(32))
    return made


def new_plan(**changes: Any) -> StepPlan:
    table = torch.ones(32, 4)
    return StepPlan(**{**SIZES, "cosines": table, "sines": table, "parts": 1, **changes})


def layer() -> dict[str, Any]:
    rows = {"q": 32, "k": 16, "v": 16, "o": 32, "gate": 64, "up": 64, "down": 32}
    matrices = {name: torch.ones(n, 64 if name == "down" else 32) for name, n in rows.items()}
    vectors = {"attention_norm": 32, "mlp_norm": 32, "q_bias": 32, "k_norm": 8}
    return matrices | {name: torch.ones(n) for name, n in vectors.items()} | {"window": 0}


@cache
def dispatch() -> Any:
    return F.moe_dispatch(F.moe_router(torch.randn(6, 4), 2)[1], 4)


def cached() -> dict[str, Any]:
    return {
        "q": torch.ones(2, 1, 4, 8), "k_cache": torch.ones(2, 16, 2, 8), "sinks": torch.zeros(4),
        "v_cache": torch.ones(2, 16, 2, 8), "k": torch.ones(2, 1, 2, 8), "page_table": None,
        "v": torch.ones(2, 1, 2, 8), "lengths": 3, "cos": torch.ones(16, 4), "causal": True,
        "sin": torch.ones(16, 4), "scale": 1.0, "softcap": 0.0, "alibi_slopes": torch.zeros(4),
        "k_scale": None, "v_scale": None, "interleaved": False, "return_lse": False,
    }  # fmt: skip


def experts() -> dict[str, Any]:
    return {
        "input": torch.ones(6, 8), "dispatch": dispatch(), "weights": torch.ones(6, 2),
        "weight": torch.ones(4, 10, 8), "down_weight": torch.ones(4, 8, 5),
        "bias": torch.ones(4, 10), "down_bias": torch.ones(4, 8), "activation": "swiglu",
        "interleaved": False,
    }  # fmt: skip


def numbers() -> dict[str, Any]:
    return {
        "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip


def submit(**options: Any) -> None:
    engine().cancel(engine().submit([1, 2], Parameters(**options)))


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "sample_logits": (
        F.sample_logits,
        lambda: {"logits": torch.zeros(2, 16), **numbers(), "seed": 3, "position": 1,
                 "log_probs": 2, "bias": torch.zeros(2, 16), "probabilities": True},
    ),
    "speculative_accept": (
        F.speculative_accept,
        lambda: {"draft_tokens": torch.ones(2, 2, dtype=torch.long), "seed": 3, "position": 0,
                 "draft": torch.ones(2, 2, 8) / 8, "target": torch.ones(2, 3, 8) / 8,
                 "logits": False, "lengths": torch.tensor([1, 2])},
    ),
    "attention_with_kv_cache": (F.attention_with_kv_cache, cached),
    "expert_counts": (
        F.expert_counts,
        lambda: {"indices": torch.zeros(6, 2, dtype=torch.int32), "num_experts": 4},
    ),
    "moe_dispatch": (
        F.moe_dispatch,
        lambda: {"indices": torch.zeros(6, 2, dtype=torch.int32), "num_experts": 4,
                 "capacity_factor": 1.5},
    ),
    "moe_reroute": (
        F.moe_reroute,
        lambda: {"candidates": torch.arange(4).repeat(6, 1), "top_k": 2, "num_experts": 4,
                 "capacity_factor": 1.5},
    ),
    "moe_experts": (F.moe_experts, experts),
    "StepPlan": (new_plan, lambda: {**SIZES, "cosines": torch.ones(32, 4), "eps": 1e-5,
                                    "sines": torch.ones(32, 4), "scale": None, "softcap": 0.0,
                                    "activation": "silu", "interleaved": False, "parts": 1}),
    "add_layer": (lambda **given: new_plan().add_layer(**given), layer),
    "finish": (
        lambda **given: new_plan().finish(**given),
        lambda: {"embedding": torch.ones(96, 32), "final_norm": torch.ones(32), "head": None},
    ),
    "StepSession": (StepSession, lambda: {"plan": plan(), "positions": 16}),
    "step": (
        lambda **given: StepSession(plan(), 16).step(**given),
        lambda: {"tokens": [1, 2], "outputs": 1, "logits": False, "activations": 16},
    ),
    "truncate": (lambda **given: StepSession(plan(), 16).truncate(**given), lambda: {"length": 0}),
    "barrier_nanoseconds": (barrier_nanoseconds, lambda: {"rounds": 10}),
    "PageTable": (
        PageTable,
        lambda: {"num_pages": 8, "page_size": 16, "device": None, "share_prefixes": True},
    ),
    "PagedCache": (
        PagedCache,
        lambda: {"num_layers": 2, "num_pages": 8, "num_heads": 2, "head_dim": 8, "value_dim": 8,
                 "heads_major": False, "device": None, "dtype": torch.float32},
    ),
    "Engine": (
        Engine,
        lambda: {"model": model(), "cache": PagedCache(1, 8, 2, 8), "max_tokens": 64, "chunk": 8,
                 "detokenize": None, "draw": torch.argmax, "max_waiting": 3, "vocab_size": 64},
    ),
    "engine": (tfk.engine, lambda: {"model": model(), "num_pages": 8, "page_size": 16,
                                    "max_sequences": 2}),
    "submit": (
        lambda **given: engine().submit(**given),
        lambda: {"prompt_tokens": [1, 2], "parameters": None},
    ),
    "Parameters": (submit, lambda: {**numbers(), "max_new_tokens": 2, "seed": 0, "salt": None,
                                    "stop_tokens": (1,), "bias": ((1, 2.0),), "log_probs": 2}),
    "cancel": (lambda **given: engine().cancel(**given), lambda: {"number": 5}),
    "generate": (
        tfk.generate,
        lambda: {"model": model(), "tokens": torch.tensor([[1, 2]]), "max_new_tokens": 2,
                 "temperature": 0.5, "top_k": 3, "top_p": 0.9, "chunk": 8, "sampling": None,
                 "stream": None, "generator": None},
    ),
    "quantize": (tfk.quantize, lambda: {"model": torch.nn.Linear(2, 2), "bits": 4,
                                        "group_size": 32, "head_bits": 8}),
}  # fmt: skip

ALIASES = {"input": "x"}  # arguments that the op's own checks know by another name


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_named(name: str) -> None:
    call, good = CALLS[name]
    call(**good())
    for argument, value in itertools.product(good(), STRANGE):
        error = error_of(call, {**good(), argument: value})
        text = f"{name}({argument}={value!r}): {type(error).__name__}: {error}"
        assert error is None or is_ours(error), text
        assert error is None or is_about_arguments(str(error), good()), text


def error_of(call: Callable[..., Any], given: dict[str, Any]) -> Exception | None:
    try:
        call(**given)
    except Exception as error:
        return error
    return None


def is_about_arguments(message: str, given: dict[str, Any]) -> bool:
    """Whether a message is "op: argument ...": of the argument, or of one that it does not fit."""
    op, _, rest = message.partition(": ")
    known = {*given, *(ALIASES.get(name, name) for name in given)}
    return bool(op) and any(name in rest for name in known)
