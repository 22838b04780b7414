# SPDX-License-Identifier: MIT
from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from transformer_kernels.measure import schema
from transformer_kernels.measure.schema import SchemaError

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def test_a_result_survives_the_file(full_result, tmp_path):
    path = tmp_path / "deep" / "result.json"
    schema.save(full_result, path)
    assert schema.load(path) == full_result


def test_the_pass_of_a_row_is_called_pass_in_the_file(full_result):
    row = json.loads(schema.to_json(full_result))["rows"][0]
    assert row["pass"] == "forward"
    assert "pass_" not in row


def test_a_file_has_a_line_for_each_field_and_each_row(full_result):
    fields = schema.to_json(full_result).splitlines()
    data = json.loads(schema.to_json(full_result))
    lists = [value for value in data.values() if isinstance(value, list) and value]
    assert len(fields) == 2 + len(data) + sum(len(rows) + 1 for rows in lists)
    lines = [json.loads(line.strip().rstrip(",")) for line in fields if line.startswith("  {")]
    assert lines == [row for rows in lists for row in rows]


def test_the_stored_files_have_that_form():
    paths = sorted(RESULTS.glob("*.json"))
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert schema.to_text(json.loads(text)) == text, f"{path.name}: tools/format_results.py"


def test_what_is_absent_takes_its_default(make_result):
    data = json.loads(schema.to_json(make_result()))
    for key in ("ceilings", "skipped", "host", "training"):
        del data[key]
    loaded = schema.from_json(json.dumps(data))
    assert loaded.ceilings is None
    assert loaded.host == []


def _change(path, value):
    def edit(data):
        target = data
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return edit


def _drop(path):
    def edit(data):
        target = data
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_change(["schema_version"], 2), "schema_version is 2, expected 1"),
        (_drop(["schema_version"]), "schema_version is None, expected 1"),
        (_drop(["machine"]), "result: field 'machine' is missing"),
        (_drop(["rows", 0, "median_us"]), r"result.rows\[0\]: field 'median_us' is missing"),
        (_change(["rows", 1, "median_us"], "9"), r"rows\[1\].median_us is '9', expected a number"),
        (_change(["rows", 0, "median_us"], True), r"median_us is True, expected a number"),
        (_change(["rows", 0, "samples"], True), r"samples is True, expected int"),
        (_change(["rows", 0, "shape"], [1, "x"]), r"shape\[1\] is 'x', expected int"),
        (_change(["rows", 0, "colour"], 1), r"result.rows\[0\]: unknown field 'colour'"),
        (_change(["rows"], {}), r"result.rows is {}, expected a list"),
        (_change(["machine"], []), r"result.machine is \[\], expected an object"),
        (_change(["versions"], []), r"result.versions is \[\], expected an object"),
        (_change(["date"], None), r"result.date is None, expected str"),
    ],
)
def test_a_wrong_file_is_refused_by_name(full_result, edit, message):
    data = json.loads(schema.to_json(full_result))
    edit(data)
    with pytest.raises(SchemaError, match=message):
        schema.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["{", "", "[]", "3"])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(SchemaError):
        schema.from_json(text)


def test_nan_is_refused_both_ways(full_result, make_result, make_row):
    with pytest.raises(ValueError, match="JSON"):
        schema.to_json(make_result([make_row(median=float("nan"))]))
    text = schema.to_json(full_result).replace("90.0", "NaN", 1)
    with pytest.raises(SchemaError, match="NaN is no figure"):
        schema.from_json(text)


def test_the_message_names_the_file(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(SchemaError, match=r"broken\.json: schema_version"):
        schema.load(path)


def test_the_final_loss_is_a_mean(full_result):
    stock = full_result.training.stock
    assert stock.final_loss == 3.5
    assert dataclasses.replace(stock, losses=[9.0] * 6 + [1.0, 2.0]).final_loss == 1.5
