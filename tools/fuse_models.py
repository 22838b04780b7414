#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every family of models in every situation, and writes the tables of docs/fuse_models.md.

    fuse_models.py                     runs tests/python/fuse/test_zoo.py in full, and writes
    fuse_models.py --report FILE ...   writes from the JUnit reports of earlier runs, of
                                       which the last to have an outcome counts

The text between the two lines that begin with `<!-- fuse_models` in the document is replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from build import SCRIPTS
from setup_env import ROOT

DOCUMENT = ROOT / "docs" / "fuse_models.md"
TESTS = "tests/python/fuse/test_zoo.py"
TABLES = re.compile(r"(<!-- fuse_models -->\n).*?(<!-- /fuse_models -->)", re.DOTALL)


@dataclass(frozen=True)
class Outcome:
    """One family in one situation."""

    family: str
    situation: str
    result: str  # "right", "wrong" or "not run"
    sites: dict[str, int]  # by pattern, where it was right
    versions: str = ""  # of the libraries that it ran with


def outcomes(report: Path) -> Iterator[Outcome]:
    for case in ElementTree.parse(report).iter("testcase"):
        found = {p.get("name"): p.get("value", "") for p in case.iter("property")}
        if "family" not in found:
            continue
        sites = json.loads(found.get("sites", "{}"))
        versions = found.get("versions", "")
        yield Outcome(found["family"], found["situation"], result_of(case), sites, versions)


def result_of(case: ElementTree.Element) -> str:
    skipped = case.find("skipped")
    if skipped is None:
        failed = case.find("failure") is not None or case.find("error") is not None
        return "wrong" if failed else "right"
    return "wrong" if skipped.get("type") == "pytest.xfail" else "not run"


def latest(found: Iterable[Outcome]) -> list[Outcome]:
    """Keeps the last outcome of each family in each situation, at the place of the first."""
    return list({(outcome.family, outcome.situation): outcome for outcome in found}.values())


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def models(found: Sequence[Outcome]) -> str:
    """Lists the sites of each model, and the situations in which it did not follow stock."""
    rows = []
    for family in sorted({outcome.family for outcome in found}):
        mine = [outcome for outcome in found if outcome.family == family]
        sites = next((o.sites for o in mine if o.situation == "inference"), {})
        rows.append((
            family,
            ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in sorted(sites.items())) or "-",
            str(sum(o.result == "right" for o in mine)),
            ", ".join(o.situation for o in mine if o.result == "wrong") or "-",
        ))  # fmt: skip
    return table(("model", "sites", "situations right", "wrong in"), rows)


def situations(found: Sequence[Outcome]) -> str:
    rows = []
    for situation in sorted({outcome.situation for outcome in found}):
        mine = [outcome for outcome in found if outcome.situation == situation]
        wrong = [outcome.family for outcome in mine if outcome.result == "wrong"]
        right = sum(outcome.result == "right" for outcome in mine)
        rows.append((situation, str(right), ", ".join(wrong) or "-"))
    return table(("situation", "models right", "wrong"), rows)


def rendered(found: Sequence[Outcome]) -> str:
    versions = "; and with ".join(sorted({o.versions for o in found if o.versions}))
    return f"{models(found)}\n\n{situations(found)}\n\nRun with {versions}.\n"


def run(report: Path) -> None:
    """A case changes each layer of its model, which on a busy machine takes longer than the suite
    allows a test: without a limit none counts as wrong for that."""
    subprocess.run(
        [SCRIPTS / "python", "-m", "pytest", "-q", "--timeout=0", TESTS, f"--junitxml={report}"],
        cwd=ROOT,
        env={**os.environ, "TFK_FUSE_ZOO": "all"},
        check=False,  # what fails is in the table
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args()
    reports = options.report
    if reports is None:
        reports = [ROOT / "build" / "fuse_models.xml"]
        reports[0].parent.mkdir(exist_ok=True)
        reports[0].unlink(missing_ok=True)
        run(reports[0])
    found = latest(outcome for report in reports for outcome in outcomes(report))
    if not found:
        raise SystemExit(f"fuse_models: the reports have no outcome, expected those of {TESTS}")
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(TABLES.sub(lambda m: f"{m[1]}{rendered(found)}{m[2]}", text))
    wrong = sum(outcome.result == "wrong" for outcome in found)
    print(f"[fuse_models] {len(found)} outcomes, {wrong} wrong; wrote {DOCUMENT.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
