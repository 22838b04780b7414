# SPDX-License-Identifier: MIT
"""The log-probabilities of an answer's tokens, whole and streamed."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.generation.tokenizer import Tokenizer

from .conftest import Client, repeating, served

pytest.importorskip("transformer_kernels.serving.app", reason="the extra serve brings it")

LETTERS = slice(ord("a"), ord("z") + 1)
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


class Table:
    """A model whose logits are a row of a table, chosen by the last token; it says letters."""

    def __init__(self) -> None:
        self.logits = torch.full((256, 256), -30.0)
        self.logits[:, LETTERS] = torch.randn(256, 26)

    def __call__(self, batch: tfk.decode.Batch, _: tfk.decode.PagedCache) -> torch.Tensor:
        return self.logits[batch.tokens[batch.outputs]]

    def log_probs(self, text: str) -> torch.Tensor:
        """The log-probabilities of what follows each letter, a row each."""
        return self.logits[list(text.encode())].double().log_softmax(1)


def choice(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, answer = client.ask(path, body)
    assert status == 200, answer
    found: dict[str, Any] = answer["choices"][0]
    return found


def streamed(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in client.events(path, body)]


def test_those_of_a_completion_are_the_models() -> None:
    model = Table()
    with served(repeating(model)) as client:
        body = {
            "prompt": "x", "max_tokens": 20, "logprobs": 3, "seed": random.getrandbits(62),
            "logit_bias": {"122": 2}, "presence_penalty": 1,
        }  # fmt: skip
        found = choice(client, COMPLETIONS, body)
        text, told = found["text"], found["logprobs"]
        assert told["tokens"] == list(text)
        assert told["text_offset"] == list(range(20))
        for row, letter, own, likeliest in zip(
            model.log_probs("x" + text[:-1]), text, told["token_logprobs"], told["top_logprobs"],
            strict=True,
        ):  # fmt: skip
            assert likeliest[letter] == own
            assert len(likeliest) == 3 or (len(likeliest) == 4 and own == min(likeliest.values()))
            for name, number in likeliest.items():
                assert abs(number - row[ord(name)]) < 1e-4
            assert abs(sorted(likeliest.values())[-3] - row.sort().values[-3]) < 1e-4
        for asked in (body, {**body, "stop": text[5:8], "logprobs": 0}):
            whole = choice(client, COMPLETIONS, asked)
            parts = streamed(client, COMPLETIONS, asked)
            assert "".join(part["text"] for part in parts) == whole["text"]
            assert whole["logprobs"]["tokens"] == list(whole["text"])
            for name, values in whole["logprobs"].items():
                assert values == [one for part in parts for one in part["logprobs"][name]]
        assert [list(each) for each in whole["logprobs"]["top_logprobs"]] == [
            [letter] for letter in whole["text"]
        ]


def test_those_of_a_chat_are_the_models() -> None:
    model = Table()
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9, "temperature": 0,
    }  # fmt: skip
    with served(repeating(model)) as client:
        for fields, count in (({}, 0), ({"top_logprobs": 20}, 20)):
            asked = {**body, "logprobs": True, **fields}
            whole = choice(client, CHATS, asked)
            text, content = whole["message"]["content"], whole["logprobs"]["content"]
            rows = model.log_probs("\n" + text[:-1])  # the prompt's last token is a new line
            for entry, letter, row in zip(content, text, rows, strict=True):
                assert entry["token"] == letter
                likeliest = entry.pop("top_logprobs")
                assert len(likeliest) == count
                assert not likeliest or likeliest[0] == entry
                numbers = [one["logprob"] for one in likeliest]
                assert numbers == sorted(numbers, reverse=True)
                for one in (entry, *likeliest):
                    assert one["bytes"] == [ord(one["token"])]
                    assert abs(one["logprob"] - row[ord(one["token"])]) < 1e-4
            whole = choice(client, CHATS, asked)
            parts = [part["logprobs"]["content"] for part in streamed(client, CHATS, asked)]
            assert whole["logprobs"]["content"] == [entry for part in parts for entry in part]
        assert choice(client, CHATS, {**body, "logprobs": False})["logprobs"] is None


def test_tokens_that_are_no_whole_character_are_named_by_their_bytes() -> None:
    sign = "€".encode()
    after = {sign[0]: sign[1], sign[1]: sign[2]}

    def euro(batch: tfk.decode.Batch, _: tfk.decode.PagedCache) -> torch.Tensor:
        tokens = [after.get(token, sign[0]) for token in batch.tokens[batch.outputs].tolist()]
        return torch.nn.functional.one_hot(torch.tensor(tokens), 256).float()

    with served(repeating(euro)) as client:
        body = {"prompt": "a", "max_tokens": 8, "temperature": 0, "logprobs": 0}
        parts = streamed(client, COMPLETIONS, body)
        names = ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
        assert [part["logprobs"]["tokens"] for part in parts] == [names, names, names[:2]]
        offsets = [part["logprobs"]["text_offset"] for part in parts]
        assert offsets == [[0] * 3, [1] * 3, [2] * 2]


def test_a_token_that_ends_the_answer_is_not_told() -> None:
    def count_up(batch: tfk.decode.Batch, _: tfk.decode.PagedCache) -> torch.Tensor:
        following = (batch.tokens[batch.outputs] + 1) % 128
        return torch.nn.functional.one_hot(following, 256).float()

    with served(repeating(count_up)) as client:
        body = {"prompt": "|", "max_tokens": 9, "temperature": 0, "logprobs": 1}
        found = choice(client, COMPLETIONS, body)
        assert found["finish_reason"] == "stop"
        assert found["text"] == "}~\x7f"
        assert found["logprobs"]["tokens"] == ["}", "~", "\x7f"]


def test_what_cannot_be_is_null() -> None:
    def certain(batch: tfk.decode.Batch, _: tfk.decode.PagedCache) -> torch.Tensor:
        logits = torch.full((len(batch.outputs), 256), -torch.inf)
        logits[:, ord("b")] = 3
        return logits

    with served(repeating(certain)) as client:
        body = {"prompt": "a", "max_tokens": 1, "temperature": 0, "logprobs": 2}
        told = choice(client, COMPLETIONS, body)["logprobs"]
        assert told["token_logprobs"] == [0]
        assert told["top_logprobs"] == [{"b": 0, "\0": None}]


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pairs = [("Ã", "©"), ("Ġ", "a"), ("â", "Ĥ")]
    pieces = [*letters, *map("".join, pairs)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    words = Tokenizer(made, None, [])
    assert sorted(map(words.bytes_of, range(256))) == [bytes([byte]) for byte in range(256)]
    for text in ("a café", "5 € a", " a\ufffd<end>\n"):
        tokens = words.encode(text)
        assert b"".join(map(words.bytes_of, tokens)) == text.encode()
        assert len(tokens) < len(text.encode())
    assert words.bytes_of(len(pieces) + 9) == b""
