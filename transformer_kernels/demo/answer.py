# SPDX-License-Identifier: MIT
"""Text of a trained language model, SmolLM2, and how fast it is written, stock and ours."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.generation.chat import load
from transformer_kernels.generation.generate import generate
from transformer_kernels.generation.tokenizer import tokenizer_of
from transformer_kernels.models import Llama

QUESTION = "Write a short story about a lighthouse."
_WARM = 4  # tokens that are written before those that are timed


@dataclass(frozen=True)
class Answer:
    """The text that our kernels wrote, and the tokens a second of both."""

    text: str
    stock: float
    ours: float


class Times:
    """The time of each step; transformers calls ``put`` and ``end``, as of any of its streamers."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is left to be written."""

    def rate(self, new: int) -> float:
        """Tokens a second of the last ``new`` ones, the first of which came with the prompt."""
        first, *_, last = self.times[-new:]
        return (new - 1) / (last - first)


@torch.no_grad()
def answer(path: Path, device: torch.device, count: int) -> Answer:
    """Answers the question with ``count`` tokens: in bfloat16 by transformers, and by our kernels
    with the few bits of the file."""
    words = tokenizer_of(path)
    asked = words.encode(words.render([{"role": "user", "content": QUESTION}]))
    tokens = torch.tensor([asked], device=device)
    ours, stock = load(path, None, device.type), stock_model(path, device)
    rates = {}
    for new in (_WARM, count):
        seen, theirs = Times(), Times()
        written = generate(ours, tokens, new, stream=seen.put)
        stock.generate(tokens, max_new_tokens=new, min_new_tokens=new, do_sample=False,
                       streamer=theirs)  # fmt: skip
        rates = {"ours": seen.rate(new), "stock": theirs.rate(new)}
    return Answer(words.decode(written[0, len(asked) :].tolist()), **rates)


def stock_model(path: Path, device: torch.device) -> Any:
    """The model of transformers with the weights of the file in bfloat16."""
    import transformers

    dense = Llama.from_pretrained(path, dtype=torch.bfloat16, packed=False)
    config = dense.config
    made: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=config.vocab_size, max_position_embeddings=config.context,
        hidden_size=config.dim, num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads, num_key_value_heads=config.kv_heads,
        head_dim=config.width, intermediate_size=config.inner_dim, rms_norm_eps=config.eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        tie_word_embeddings=config.tie_weights, pad_token_id=0,
    ))  # fmt: skip
    made.to(device, torch.bfloat16).load_state_dict(dense.state_dict())
    return made.eval()
