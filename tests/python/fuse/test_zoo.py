# SPDX-License-Identifier: MIT
"""Every family of models in every situation: fused, it gives what stock gives.

The suite runs a part of the matrix: the core for every family, and every situation for a few
families, with a few modules changed one at a time. With TFK_FUSE_ZOO=all in the environment it runs
all of it (`tools/fuse_models.py`, which writes the table of the documents from that run).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os

import pytest

from .zoo import changing, compiling, copying, running, wrapping
from .zoo.families import FAMILIES, Family
from .zoo.subject import SITUATIONS, Situation, Subject

MODULES = (running, copying, compiling, wrapping, changing)  # each puts its own into SITUATIONS
CORE = ("inference", "training", "unfused")
IN_FULL = ("gpt2", "llama", "t5")
COSTLY = ("compiled", "exported", "trainer")  # these are run for the first of them
WHOLE = os.environ.get("TFK_FUSE_ZOO") == "all"
LIBRARIES = ("torch", "transformers", "timm", "peft", "accelerate")
VERSIONS = ", ".join(
    f"{name} {importlib.metadata.version(name)}"
    for name in LIBRARIES
    if importlib.util.find_spec(name)
)
PLACES = None if WHOLE else 2  # modules that are changed one at a time


def is_run(family: Family, situation: Situation) -> bool:
    chosen = IN_FULL[:1] if situation.name in COSTLY else IN_FULL
    wanted = WHOLE or situation.name in CORE or family.name in chosen
    return wanted and situation.applies(family)


MATRIX = [
    pytest.param(family, situation, id=f"{family}-{situation}")
    for module in MODULES
    for situation in SITUATIONS.values()
    if situation.run.__module__ == module.__name__
    for family in FAMILIES
    if is_run(family, situation)
]


def put(subject: Subject, situation: Situation) -> Subject:
    """Puts the subject, or where it fails at a kink one with other inputs, in the situation."""
    try:
        situation.run(subject)
    except AssertionError:
        if subject.seed + 1 >= subject.attempts:
            raise
        return put(dataclasses.replace(subject, seed=subject.seed + 1), situation)
    return subject


@pytest.mark.parametrize(("family", "situation"), MATRIX)
def test_a_fused_model(family, situation, record_property):
    record_property("family", family.name)
    record_property("situation", situation.name)
    record_property("versions", VERSIONS)
    subject = put(Subject(family, places=PLACES), situation)
    record_property("sites", json.dumps(subject.sites))
