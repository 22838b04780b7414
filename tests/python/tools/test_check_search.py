# SPDX-License-Identifier: MIT
from __future__ import annotations

from pathlib import Path

import check_search

INDEX = {
    "docnames": ["attention", "faq", "install"],
    "terms": {"attent": [0, 1], "instal": 2, "lora": 1},
    "titleterms": {"flash": [0]},
}


def stem(word: str) -> str:
    """Stands in for Sphinx's stemmer, which is installed where the documentation is built."""
    return word.removesuffix("ing").removesuffix("ion").removesuffix("l")


def test_a_query_finds_the_pages_with_all_of_its_words() -> None:
    assert check_search.pages(INDEX, "attention", stem) == {"attention", "faq"}
    assert check_search.pages(INDEX, "Flash attention", stem) == {"attention"}
    assert check_search.pages(INDEX, "installing", stem) == {"install"}
    assert check_search.pages(INDEX, "macos", stem) == set()


def test_a_page_that_is_not_found_is_named() -> None:
    assert check_search.unanswered(INDEX, {"lora": ("faq",)}, stem) == []
    assert check_search.unanswered(INDEX, {"lora": ("faq", "install")}, stem) == [
        "search for 'lora' does not find install"
    ]


def test_the_index_is_read_as_the_browser_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "searchindex.js"
    file.write_text('Search.setIndex({"docnames": ["a"], "terms": {"x": 0}, "titleterms": {}})')
    assert check_search.pages(check_search.read(file), "x", stem) == {"a"}


def test_the_words_that_newcomers_type_are_looked_up() -> None:
    assert {"flash attention", "lora", "huggingface", "macos"} <= set(check_search.ANSWERS)
