# SPDX-License-Identifier: MIT
"""Docstrings of public names: each has an example that runs, and says what each argument is."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels import _times

PACKAGES = (
    "functional", "nn", "optim", "models", "decode", "levels", "parallel", "profile", "workbench",
)  # fmt: skip
MORE = (  # of the top level
    "autotune", "engine", "generate", "info", "quantize", "tuning", "tune_file",
)  # fmt: skip
MODULES = (*PACKAGES, "fpga", "compat")
NAMES = {"torch": torch, "tfk": tfk}  # that an example may use without importing them
# A docstring that refers to another function for its arguments.
REFERS = re.compile(
    r"(?:arguments|of) .*(?:those|arguments) of\b|The other arguments|with its arguments"
)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_described(thing: Any) -> bool:
    """Whether users call or construct it: results and errors come out of other calls."""
    if not callable(thing) or isinstance(thing, ModuleType):
        return False
    is_result = dataclasses.is_dataclass(thing) and not thing.__name__.endswith("Config")
    is_error = isinstance(thing, type) and issubclass(thing, Exception)
    is_tuple = isinstance(thing, type) and issubclass(thing, tuple)
    return not (is_result or is_error or is_tuple)


def public() -> Iterator[tuple[str, Any]]:
    """Yields every public function, class and module, by its name below the package."""
    yield "transformer_kernels", tfk
    for name in MORE:
        yield name, getattr(tfk, name)
    for package in MODULES:
        module = getattr(__import__(f"transformer_kernels.{package}"), package)
        yield package, module
        for name in getattr(module, "__all__", ()):
            if is_described(thing := getattr(module, name)):
                yield f"{package}.{name}", thing


PUBLIC = dict(public())


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples write pictures into the working folder, and times into the user's cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFK_TUNE_FILE", str(tmp_path / "tune.txt"))
    _times.read()
    yield
    monkeypatch.undo()
    _times.read()


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_runs(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, dict(NAMES), name, None, None)
    assert example.examples, f"{name} has no example"
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert not result.failed, "".join(said)


def described(thing: Any) -> set[str]:
    """The names that the docstrings of a thing and its bases explain or mention."""
    texts = [inspect.getdoc(owner) or "" for owner in getattr(thing, "__mro__", (thing,))[:3]]
    rows = re.findall(r"^    ((?:\w+, )*\w+):", "\n".join(texts), re.MULTILINE)
    names = {name for row in rows for name in row.split(", ")}
    return names | set(re.findall(r"``(\w+)", texts[0]))


CALLABLES = [name for name, thing in PUBLIC.items() if not isinstance(thing, ModuleType)]


@pytest.mark.parametrize("name", CALLABLES)
def test_every_argument_is_described(name: str) -> None:
    thing = PUBLIC[name]
    arguments = inspect.signature(thing).parameters.values()
    named = {a.name for a in arguments if a.kind not in VARIADIC and a.name[0] != "_"}
    lacking = sorted(named - described(thing))
    refers = REFERS.search(inspect.getdoc(thing) or "")
    assert not lacking or refers, f"{name} does not say what {lacking} are"
