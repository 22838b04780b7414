#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Looks up in the built documentation's search what newcomers type, and fails where a page that
answers is not among the results."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from setup_env import ROOT

Stem = Callable[[str], str]

INDEX = ROOT / "docs" / "_build" / "html" / "searchindex.js"

# Queries of newcomers, and the pages that answer them.
ANSWERS: Mapping[str, tuple[str, ...]] = {
    "flash attention": ("ops/attention", "faq"),
    "lora": ("faq", "gpt2"),
    "huggingface": ("faq", "gpt2"),
    "macos": ("faq", "troubleshooting"),
    "windows": ("faq",),
    "install": ("python", "troubleshooting"),
    "rms norm": ("ops/norm",),
    "quantised": ("ops/linear", "cpu"),
    "rope": ("ops/rope",),
    "cpu": ("cpu",),
    "mask": ("ops/attention", "ops/softmax"),
}


def read(path: Path) -> Mapping[str, Any]:
    """The index that the browser loads: a call of JavaScript whose argument is JSON."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text[text.index("(") + 1 : text.rindex(")")])


def pages(index: Mapping[str, Any], query: str, stem: Stem) -> set[str]:
    """The pages that contain every word of the query in their text or in a title, as the search
    page finds them."""

    def with_word(word: str) -> set[int]:
        found = (index[part].get(stem(word.lower()), []) for part in ("terms", "titleterms"))
        return {page for hits in found for page in (hits if isinstance(hits, list) else [hits])}

    numbers = set.intersection(*map(with_word, re.findall(r"\w+", query)))
    return {index["docnames"][number] for number in numbers}


def unanswered(
    index: Mapping[str, Any], answers: Mapping[str, tuple[str, ...]], stem: Stem
) -> list[str]:
    lines = []
    for query, wanted in answers.items():
        found = pages(index, query, stem)
        missing = [page for page in wanted if page not in found]
        if missing:
            lines.append(f"search for {query!r} does not find {', '.join(missing)}")
    return lines


def report(path: Path = INDEX) -> int:
    from sphinx.search.en import SearchEnglish

    failures = unanswered(read(path), ANSWERS, SearchEnglish({}).stem)
    summary = f"[search] {len(ANSWERS)} queries find their pages"
    print("\n".join(failures) if failures else summary)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(report())
