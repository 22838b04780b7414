# SPDX-License-Identifier: MIT
"""The files that the fuzzers of examples/cpp/gpt2 begin with: each is read, or refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .conftest import Program

CORPUS = Path(__file__).parents[4] / "examples" / "cpp" / "gpt2" / "fuzz" / "corpus"
READ = {
    "safetensors": {"checksum", "float32", "float16"},
    "llmc": {"float32", "bfloat16", "tokens"},
    "tokenizer": {"merges", "bytes"},
}


@pytest.mark.parametrize("form", READ)
def test_files_are_read_or_refused(gpt2: Program, form: str) -> None:
    program = Path(os.environ["TFK_GPT2"]).with_name("gpt2_corpus")
    files = sorted((CORPUS / form).iterdir())
    result = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result
    verdicts = dict(line.split(": ") for line in result.stdout.splitlines())
    assert len(verdicts) == len(files)
    assert {name for name, verdict in verdicts.items() if verdict == "read"} == READ[form]
