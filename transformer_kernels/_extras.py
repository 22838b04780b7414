# SPDX-License-Identifier: MIT
"""Names the extra that brings an optional package, where the package is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# The extra to name for a package, by the name that is imported.
EXTRA_OF = {
    "gguf": "chat",
    "jinja2": "bench",
    "matplotlib": "bench",
    "numpy": "bench",
    "prometheus_client": "serve",
    "pydantic": "serve",
    "rich": "bench",
    "safetensors": "chat",
    "shtab": "completion",
    "sklearn": "examples",
    "starlette": "serve",
    "tensorboard": "profile",
    "tokenizers": "chat",
    "transformers": "demo",
    "uvicorn": "serve",
}


def why_missing(error: ImportError) -> str | None:
    """The line to print for an import that failed; None where no extra brings the package."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        return None
    return (
        f"the package {package} is missing: pip install 'transformer-kernels[{EXTRA_OF[package]}]'"
    )


@contextmanager
def named(program: str) -> Iterator[None]:
    """Ends the program with a line that names the extra, in place of a traceback.

    >>> with named("gpt2_block"):
    ...     import transformers
    """
    try:
        yield
    except ImportError as error:
        if (reason := why_missing(error)) is None:
            raise
        print(f"{program}: {reason}", file=sys.stderr)
        raise SystemExit(2) from None
