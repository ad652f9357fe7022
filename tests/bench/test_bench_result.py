"""From samples to figures: what counts, what does not, and when there is no result."""

import pytest

from dpwa.bench.processes import BenchmarkError
from dpwa.bench.records import Progress, SessionReport, parse_record
from dpwa.bench.result import Figure, failures_of, figures_of, ratios_of
from dpwa.bench.suites.collectives import COLLECTIVES
from dpwa.bench.suites.plane import PLANE
from dpwa.bench.suites.tables import TABLES
from dpwa.bench.tables import TablesSpec


def reports(*samples):
    """Reports of one measure, `round`, by process."""
    return [SessionReport(samples={"round": list(of_one)}) for of_one in samples]


def took(*seconds):
    return [{"round": second} for second in seconds]


def figure(median_ms):
    return Figure(median_ms=median_ms, min_ms=0, max_ms=0, repetitions=1)


def test_a_repetition_takes_as_long_as_its_slowest_process():
    figures = figures_of(reports(took(0.001, 0.005, 0.003), took(0.002, 0.001, 0.009)))
    assert figures == {"round": Figure(median_ms=5, min_ms=2, max_ms=9, repetitions=3)}


def test_what_one_process_times_alone_is_its_own():
    figures = figures_of(reports(took(0.002, 0.004), [{}, {}]))
    assert figures["round"].median_ms == 3


def test_a_repetition_in_which_any_process_failed_does_not_count():
    failed = reports([None, *took(*[0.002] * 9)], took(9.0, *[0.001] * 9))
    figures = figures_of(failed)
    assert (figures["round"].max_ms, figures["round"].repetitions) == (2, 9)
    assert failures_of(failed) == {"round": 1}


@pytest.mark.parametrize("idle", [[{}] * 10, []])
def test_more_than_a_tenth_of_the_rounds_failing_is_no_result(idle):
    samples = [[None, None, *took(*[0.002] * 8)], *([idle] if idle else [])]
    with pytest.raises(BenchmarkError, match="round: 2 of 10 rounds merged nothing"):
        figures_of(reports(*samples))


def test_no_failure_is_not_listed():
    assert failures_of(reports(took(1.0), took(1.0))) == {}


def test_ratios_are_quotients_of_summed_medians():
    figures = {"shm_round": figure(30), "copy": figure(8), "lerp": figure(4)}
    assert ratios_of(figures, PLANE.ratios) == {"shm_round / (copy + lerp)": 2.5}


def test_what_moves_a_whole_table_is_told_as_a_rate_too():
    measures = ("shm_get_rows", "shm_get_all")
    spec = TablesSpec(rows=250_000, columns=10, measures=measures)  # 10 MB
    samples = {name: [{name: 0.02}] for name in measures}
    result = spec.result(spec.plan(), [SessionReport(samples=samples)])
    assert result.mb_per_s == {"shm_get_all": pytest.approx(500)}
    assert result.numbers() == {
        "ratio of medians": {},
        "MB/s of each process": result.mb_per_s,
    }


@pytest.mark.parametrize("suite", [PLANE, COLLECTIVES, TABLES])
def test_every_ratio_is_of_figures_that_some_measure_has(suite):
    assert suite.ratios
    for ratio in suite.ratios:
        assert {*ratio.above, *ratio.below} <= set(suite.titles)


@pytest.mark.parametrize(
    "record", [Progress(repetitions_done=3), SessionReport(samples={"copy": [None, {}, {"a": 1}]})]
)
def test_a_record_survives_its_way_to_the_parent(record):
    assert parse_record(record.model_dump_json()) == record
