# SPDX-License-Identifier: MIT
from __future__ import annotations

import statistics

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_kernels.measure.statistics import geometric_mean, quantile, summarise

_times = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=50)
# A busy machine may hold any example up.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_patient
@given(_times)
def test_median_is_that_of_the_standard_library(times):
    assert summarise(times).median == pytest.approx(statistics.median(times))


@_patient
@given(_times)
def test_spread_lies_within_the_samples_and_around_the_median(times):
    summary = summarise(times)
    assert min(times) <= summary.p10 <= summary.median <= summary.p90 <= max(times)
    assert summary.samples == len(times)


def test_quantile_interpolates_between_neighbours():
    assert quantile([10.0, 20.0], 0.25) == 12.5
    assert quantile([10.0, 20.0, 40.0], 1.0) == 40.0


def test_quantile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="the sequence is empty"):
        quantile([], 0.5)


def test_geometric_mean_of_a_speed_up_and_its_inverse_is_one():
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
