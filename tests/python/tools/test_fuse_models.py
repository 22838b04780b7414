# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

import fuse_models

CASE = """<testcase><properties><property name="family" value="{0}"/>
<property name="situation" value="{1}"/>
<property name="versions" value="torch 2.11"/>{2}</properties>{3}</testcase>"""
SITES = '<property name="sites" value="{&quot;sum_norm&quot;: 4, &quot;norm&quot;: 5}"/>'
REPORT = "".join((
    "<testsuites><testsuite>",
    CASE.format("llama", "inference", SITES, ""),
    CASE.format("llama", "pickled", "", '<failure message="no"/>'),
    CASE.format("llama", "the root", "", '<skipped type="pytest.xfail"/>'),
    CASE.format("swin", "inference", "", ""),
    CASE.format("swin", "exported", "", '<skipped type="pytest.skip"/>'),
    "<testcase/></testsuite></testsuites>",
))  # fmt: skip


@pytest.fixture
def found(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    return list(fuse_models.outcomes(report))


def test_models_show_their_sites_and_what_was_wrong(found):
    assert fuse_models.models(found).splitlines()[2:] == [
        "| llama | norm 5, sum norm 4 | 1 | pickled, the root |",
        "| swin | - | 1 | - |",
    ]


def test_the_last_of_the_outcomes_counts(found):
    again = fuse_models.Outcome("llama", "pickled", "right", {}, "torch 2.12")
    assert fuse_models.latest([*found, again]) == [found[0], again, *found[2:]]


def test_situations_name_the_models_that_were_wrong(found):
    assert fuse_models.situations(found).splitlines()[2:] == [
        "| exported | 0 | - |",
        "| inference | 2 | - |",
        "| pickled | 0 | llama |",
        "| the root | 0 | llama |",
    ]


def test_the_versions_are_those_of_the_runs(found):
    assert fuse_models.rendered(found).endswith("\nRun with torch 2.11.\n")
    again = fuse_models.Outcome("swin", "exported", "right", {}, "torch 2.12")
    assert fuse_models.rendered([*found, again]).endswith("torch 2.11; and with torch 2.12.\n")
