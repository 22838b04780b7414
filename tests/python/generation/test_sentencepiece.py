# SPDX-License-Identifier: MIT
"""Tokenizers of SentencePiece in GGUF files, beside its rule: of all neighbours whose text is a
piece, those of the best score are joined first, the leftmost of equals; the rest becomes bytes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from transformer_kernels.decode._text import TextStream
from transformer_kernels.generation.tokenizer import Tokenizer, tokenizer_of

gguf = pytest.importorskip("gguf")

SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
JOINED = ["ab", SPACE + "a", "aa", "ba", SPACE + "ab", "aab", "abab", SPACE + SPACE, "baa"]
LETTERS = [SPACE, "a", "b", "\u00e9"]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, *JOINED, *LETTERS, "<|user|>"]
KINDS = [2, 3, 3, *[6] * 256, *[1] * (len(JOINED) + len(LETTERS)), 4]
SCORES = [0.0] * 259 + [-float(i) for i in range(len(JOINED) + len(LETTERS))] + [0.0]
NUMBERS = {piece: number for number, piece in enumerate(PIECES)}


def write(path: Path, scores: list[Any] = SCORES, **flags: bool) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(PIECES)
    writer.add_token_types(KINDS)
    writer.add_array("tokenizer.ggml.scores", scores)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, flag in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", flag)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(write(tmp_path_factory.mktemp("pieces") / "model.gguf"))


def by_the_rule(text: str) -> list[int]:
    score = {p: s for p, s, kind in zip(PIECES, SCORES, KINDS, strict=True) if kind == 1}
    parts = list(SPACE + text.replace(" ", SPACE))
    while True:
        pairs = [(i, parts[i] + parts[i + 1]) for i in range(len(parts) - 1)]
        known = [(score[both], -i, both) for i, both in pairs if both in score]
        if not known:
            break
        _, at, both = max(known)
        parts[-at : -at + 2] = [both]
    tokens = [1]
    for part in parts:
        as_bytes = [NUMBERS[f"<0x{byte:02X}>"] for byte in part.encode()]
        tokens += [NUMBERS[part]] if part in score else as_bytes
    return tokens


def test_all_short_texts_are_cut_by_the_rule(words: Tokenizer) -> None:
    for length in range(1, 8):
        for letters in itertools.product("ab ", repeat=length):
            text = "".join(letters)
            assert words.encode(text) == by_the_rule(text), text


@pytest.mark.parametrize(
    "text", ["caf\u00e9 a\n", "\u4f60\u597d ab", "\U0001f600", "a\x00b", "  ab"]
)
def test_what_is_no_piece_becomes_bytes(words: Tokenizer, text: str) -> None:
    tokens = words.encode(text)
    assert tokens == by_the_rule(text)
    assert words.decode(tokens) == text
    assert "".join(words.pieces(iter(tokens))) == text


def test_a_special_token_takes_no_space_from_a_stream(words: Tokenizer) -> None:
    stream, word = TextStream(words.decode, ()), NUMBERS[SPACE + "a"]
    tokens = [word, 1, word, 1, 2, word]
    assert "".join(map(stream.push, tokens)) + stream.flush() == words.decode(tokens) == "a a a"


@pytest.mark.parametrize(
    "text", ["ab  caf\u00e9", "\u4f60\u597d a\n", "\U0001f600<|user|>", "a\ufffd"]
)
def test_a_text_is_the_bytes_of_its_tokens(words: Tokenizer, text: str) -> None:
    first, *tokens = words.encode(text)
    assert b"".join(map(words.bytes_of, tokens)) == f" {text}".encode()
    assert words.bytes_of(first) == b"<s>"
    assert [words.bytes_of(NUMBERS[piece]) for piece in BYTES] == [bytes([n]) for n in range(256)]


def test_marked_tokens_are_found_before(words: Tokenizer) -> None:
    assert words.encode("<|user|>ab</s>") == [
        1, NUMBERS["<|user|>"], NUMBERS[SPACE + "ab"], NUMBERS["</s>"]
    ]  # fmt: skip
    assert words.stops == (NUMBERS["</s>"],)


def test_a_file_says_how_a_text_begins(tmp_path: Path) -> None:
    words = tokenizer_of(
        write(tmp_path / "model.gguf", add_bos_token=False, add_space_prefix=False)
    )
    assert words.encode("ab") == [NUMBERS["ab"]]
    assert words.decode(words.encode(" ab")) == " ab"


@pytest.mark.parametrize("scores", [SCORES[1:], ["x"] * len(PIECES)], ids=["few", "words"])
def test_scores_that_do_not_fit_are_named(tmp_path: Path, scores: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"tokenizer.ggml.scores has \d+ .*, expected \d+"):
        tokenizer_of(write(tmp_path / "model.gguf", scores))
