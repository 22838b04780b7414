# SPDX-License-Identifier: MIT
"""The tokenizer of a model's files, and its chat template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from .._errors import ArgumentValueError
from ..models.llama.gguf_file import GGUFFile
from ..models.llama.load import read_json

Messages = Sequence[dict[str, str]]  # each with a role and its content

# How text is cut before bytes are merged, by the name that llama.cpp gives it.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CUTS = {
    "default": (_WORDS,),
    "gpt-2": (_WORDS,),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),),
    "smollm": (r"\p{N}", _WORDS),
}
_NORMAL = 1
_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens that are found in text before it is cut
_SPACE = "\u2581"  # of SentencePiece
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # a piece of SentencePiece that is no text
_NO_TEXT = "\ufffd"  # what decoders give for bytes that are no character
# Letters that stand for bytes in pieces of bytes: bytes that cannot be seen have those from 256 on.
_SEEN = (*range(33, 127), *range(161, 173), *range(174, 256))
_HIDDEN = tuple(byte for byte in range(256) if byte not in _SEEN)
_BYTE_OF = {chr(byte): byte for byte in _SEEN} | {
    chr(256 + place): byte for place, byte in enumerate(_HIDDEN)
}


class Tokenizer:
    """Text to tokens and back, by the package ``tokenizers``, and a model's chat template.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
        template: the chat template, in Jinja; None where there is none.
        stops: tokens that end an answer.
        first: the token that begins a text, if the model wants one.
        names: texts of special tokens that the template may name, such as ``bos_token``.
    """

    def __init__(
        self, tokenizer: Any, template: str | None, stops: Sequence[int],
        first: int | None = None, names: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._tokenizer, self._template = tokenizer, template
        self._first, self._names = first, names or {}
        self.stops = tuple(dict.fromkeys(stops))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with the first one that the model wants."""
        tokens = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        begins = self._first is None or tokens[:1] == [self._first]
        return tokens if begins else [self._first, *tokens]  # type: ignore[list-item]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(tokens)))

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token inside a text, which may be no whole characters; of a special token,
        those of its name."""
        # Behind itself, a token keeps the space that a decoder leaves out where a text begins.
        text = self.decode([token, token])[len(self.decode([token])) :]
        if text and _NO_TEXT not in text:
            return text.encode()
        piece = self._tokenizer.id_to_token(token) or ""  # none of a vocabulary that was filled up
        if (byte := _BYTE.fullmatch(piece)) is not None:
            return bytes.fromhex(byte[1])
        if text and all(letter in _BYTE_OF for letter in piece):
            return bytes(_BYTE_OF[letter] for letter in piece)
        return (text or piece).encode()

    def pieces(self, tokens: Iterator[int]) -> Iterator[str]:
        """Yields text as soon as it is certain: a letter may take several tokens."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        for token in tokens:
            piece = stream.step(self._tokenizer, token)
            if piece:
                yield piece

    def render(self, messages: Messages) -> str:
        """The conversation as the model was trained to read it, up to where its answer begins."""
        if self._template is None:
            return "\n".join(message["content"] for message in messages)
        from jinja2 import TemplateError

        try:
            return _environment().from_string(self._template).render(
                messages=list(messages), add_generation_prompt=True, **self._names
            )  # fmt: skip
        except TemplateError as error:
            raise ArgumentValueError(f"the chat template cannot be rendered: {error}") from None


def _environment() -> Any:
    """Jinja as chat templates expect it; they come with a file, so they run in a sandbox."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise ArgumentValueError(f"the chat template refuses the conversation: {message}")

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    made.globals["raise_exception"] = raise_exception
    return made


def tokenizer_of(path: str | PathLike[str]) -> Tokenizer:
    """Reads the tokenizer of a folder of Hugging Face's, or of a GGUF file.

    Args:
        path: the folder (``tokenizer.json``, ``tokenizer_config.json``) or the file.

    Raises:
        ArgumentValueError: a file lacks something; the message names it.
        ImportError: the package ``tokenizers`` is missing.
    """
    path = Path(fspath(path))
    return _of_folder(path) if path.is_dir() else _of_gguf(GGUFFile(path))


def _of_folder(folder: Path) -> Tokenizer:
    import tokenizers

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ArgumentValueError(f"{file}: does not exist")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing narrower
        raise ArgumentValueError(f"{file}: {error}") from None
    fields = _optional(folder / "tokenizer_config.json")
    names = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = fields.get(key)
        if value is not None:
            names[key] = value["content"] if isinstance(value, dict) else str(value)
    generation = _optional(folder / "generation_config.json").get("eos_token_id")
    stops = generation if isinstance(generation, list) else [generation]
    stops = [*stops, tokenizer.token_to_id(names.get("eos_token", ""))]
    begins = fields.get("add_bos_token") and "bos_token" in names
    first = tokenizer.token_to_id(names["bos_token"]) if begins else None
    template = _template_of(folder, fields)
    return Tokenizer(tokenizer, template, [x for x in stops if x is not None], first, names)


def _template_of(folder: Path, fields: dict[str, Any]) -> str | None:
    """The chat template, in a file of its own or in the configuration; of several by name, the
    default."""
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    found = fields.get("chat_template")
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found}.get("default")
    return found


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _of_gguf(file: GGUFFile) -> Tokenizer:
    kind = file.get("tokenizer.ggml.model", str)
    if kind not in ("gpt2", "llama"):
        raise file.error(
            f"tokenizer.ggml.model is {kind!r}, expected 'gpt2' (merges of bytes) or 'llama'"
            " (SentencePiece)"
        )
    tokens = file.get("tokenizer.ggml.tokens", list)
    tokenizer = _byte_pairs(file, tokens) if kind == "gpt2" else _scored_pieces(file, tokens)
    kinds = file.metadata.get("tokenizer.ggml.token_type", [])
    _add_marked(tokenizer, tokens, kinds)

    def special(name: str) -> int | None:
        token = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return token if isinstance(token, int) and token < len(tokens) else None

    ids = {name: special(name) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    short = {"unknown": "unk", "padding": "pad"}
    names = {
        f"{short.get(name, name)}_token": tokens[token]
        for name, token in ids.items()
        if token is not None
    }
    stops = [token for name in ("eos", "eot", "eom") if (token := ids[name]) is not None]
    begins = file.metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")
    first = ids["bos"] if begins else None
    return Tokenizer(tokenizer, file.metadata.get("tokenizer.chat_template"), stops, first, names)


def _byte_pairs(file: GGUFFile, tokens: list[str]) -> Any:
    """A tokenizer that merges pairs of bytes, as GPT-2's."""
    from tokenizers import Regex, decoders, pre_tokenizers

    cut = file.metadata.get("tokenizer.ggml.pre", "default")
    if cut not in _CUTS:
        raise file.error(f"tokenizer.ggml.pre is {cut!r}, expected one of {', '.join(_CUTS)}")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in file.get("tokenizer.ggml.merges", list)]
    made = _merging(file, vocab=vocabulary, merges=merges, ignore_merges=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([
        *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _CUTS[cut]),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    made.decoder = decoders.ByteLevel()
    return made


def _merging(file: GGUFFile, **options: Any) -> Any:
    from tokenizers import Tokenizer, models

    try:
        return Tokenizer(models.BPE(**options))
    except Exception as error:  # the package raises nothing narrower
        raise file.error(f"its merges do not fit its tokens: {error}") from None


def _scored_pieces(file: GGUFFile, tokens: list[str]) -> Any:
    """A tokenizer that joins neighbours to the piece of the best score until there is none, as
    SentencePiece's pairs; what is in no piece becomes bytes."""
    from tokenizers import decoders, normalizers

    scores = file.get("tokenizer.ggml.scores", list)
    kinds = file.metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    are_numbers = all(isinstance(score, (int, float)) for score in scores)
    if not are_numbers or not len(scores) == len(kinds) == len(tokens):
        raise file.error(
            f"tokenizer.ggml.scores has {len(scores)} numbers and token_type {len(kinds)}, expected"
            f" {len(tokens)} (the tokens)"
        )
    pieces = {
        token: score
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind == _NORMAL
    }
    joins = [
        (-score, piece[:i], piece[i:])
        for piece, score in pieces.items()
        for i in range(1, len(piece))
        if piece[:i] in pieces and piece[i:] in pieces
    ]
    joins.sort(key=lambda join: join[0])
    unknown = file.metadata.get("tokenizer.ggml.unknown_token_id")
    is_known = isinstance(unknown, int) and unknown < len(tokens)
    made = _merging(
        file,
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[(left, right) for _, left, right in joins],
        unk_token=tokens[unknown] if is_known else None,  # type: ignore[index]
        fuse_unk=True,
        byte_fallback=True,
    )
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    ends: list[Any] = []
    if file.metadata.get("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(_SPACE))
        ends.append(decoders.Strip(" ", 1, 0))
    made.normalizer = normalizers.Sequence(spaces)
    made.decoder = decoders.Sequence([
        decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends,
    ])  # fmt: skip
    return made


def _add_marked(tokenizer: Any, tokens: list[str], kinds: list[int]) -> None:
    """Tells the tokenizer which tokens are found in text before it is cut."""
    from tokenizers import AddedToken

    for token, kind in zip(tokens, kinds, strict=False):
        added = AddedToken(token, normalized=False, special=kind == _CONTROL)
        if kind == _CONTROL:
            tokenizer.add_special_tokens([added])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([added])
