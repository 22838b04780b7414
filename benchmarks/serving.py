#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks a server of OpenAI's shape from many clients at a time, and says how fast it answers.

    serving.py --url http://127.0.0.1:8000 [--clients 1,8,64] [--requests 64] [--new-tokens 64]
    serving.py --random                    a tiny model of random numbers, in this process

Every client sends its next request when it has read the answer of the one before. Prompts have a
beginning in common and a number of their own; answers are streamed, of the likeliest tokens.
"first" is the time to the first token, "whole" that to the last.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

import transformer_kernels as tfk
from transformer_kernels import serving

WORDS = "A lighthouse keeper writes a letter about the storm of the night before. "


class Taken(NamedTuple):
    first_s: float
    whole_s: float
    tokens: int


def ask(url: str, prompt: str, new_tokens: int) -> Taken:
    """Sends a request, and reads its stream."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.netloc, timeout=600)
    body = {"prompt": prompt, "max_tokens": new_tokens, "temperature": 0, "stream": True}
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("TFK_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    start = time.perf_counter()
    connection.request("POST", f"{at.path}/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"{url}: {answer.status} {answer.read().decode(errors='replace')}")
    first, tokens = 0.0, 0
    for line in answer:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - start
            tokens += 1
    connection.close()
    return Taken(first, time.perf_counter() - start, tokens)


def measure(url: str, clients: int, requests: int, new_tokens: int, numbers: Iterator[int]) -> str:
    """A line of the table."""
    prompts = [f"{WORDS * 2}Letter {next(numbers)}:" for _ in range(requests)]
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        taken = list(pool.map(lambda prompt: ask(url, prompt, new_tokens), prompts))
    wall = time.perf_counter() - start
    tokens = sum(one.tokens for one in taken)
    times = [quantiles([getattr(one, field) for one in taken]) for field in ("first_s", "whole_s")]
    return f"{clients:7} {requests / wall:10.2f} {tokens / wall:10.1f} {times[0]} {times[1]}"


def quantiles(seconds: list[float]) -> str:
    """The median and the 99th percentile in milliseconds."""
    cuts = statistics.quantiles([*seconds, *seconds[:1]], n=100, method="inclusive")
    return f"{cuts[49] * 1e3:10.0f} {cuts[98] * 1e3:10.0f}"


class Bytes:
    """A tokenizer whose tokens are bytes."""

    stops = ()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")


@contextlib.contextmanager
def random_server() -> Iterator[str]:
    config = tfk.models.LlamaConfig(
        vocab_size=256, context=1024, dim=64, num_layers=2, num_heads=4, num_kv_heads=2,
        inner_dim=128,
    )  # fmt: skip
    words = Bytes()
    engine = tfk.engine(tfk.models.Llama(config), max_sequences=16, detokenize=words.decode)
    with serving.in_thread(serving.make_app(engine, words, "random")) as url:
        yield url


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="a server; TFK_TOKEN is its token")
    where.add_argument("--random", action="store_true", help="a tiny server in this process")
    parser.add_argument("--clients", default="1,8,64", help="how many ask at a time, in turn")
    parser.add_argument("--requests", type=int, default=64, help="of each number of clients")
    parser.add_argument("--new-tokens", type=int, default=64, help="of each request")
    given = parser.parse_args()
    numbers = itertools.count()
    with random_server() if given.random else contextlib.nullcontext(given.url) as url:
        print(
            f"{'clients':>7} {'requests/s':>10} {'tokens/s':>10} {'first p50':>10} {'p99 ms':>10}"
            f" {'whole p50':>10} {'p99 ms':>10}"
        )
        for clients in map(int, given.clients.split(",")):
            requests = max(given.requests, clients)
            print(measure(url, clients, requests, given.new_tokens, numbers), flush=True)


if __name__ == "__main__":
    main()
