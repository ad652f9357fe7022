"""Laws of averaging, as somebody finds them who writes scenario files and runs `dpwa sim`."""

import json

import pytest
from support.commands import run_dpwa

CONSENSUS = """\
nodes: {nodes}
rounds: 60
task: consensus
schedule: {schedule}
target: {{variance_ratio: 1e-6}}
interpolation: constant
constant: {{value: 0.5}}
"""


@pytest.fixture
def found(tmp_path):
    """Runs a scenario of consensus; returns its figures, of several seeds a list."""

    def run(nodes, schedule, *settings, seeds=1):
        path = tmp_path / "scenario.yaml"
        path.write_text(CONSENSUS.format(nodes=nodes, schedule=schedule))
        words = (word for text in settings for word in ("--set", text))
        result = run_dpwa("sim", path, *words, "--repeat", seeds, "-j", 1, "--json")
        assert result.exit_code == 0, result.stderr
        told = json.loads(result.stdout)
        return told["runs"] if seeds > 1 else told

    return run


def test_it_takes_as_many_rounds_if_nobody_waits(found):
    run = found(16, "asynchronous")
    assert run["detail"] == "nodes"
    assert 14 <= run["rounds_to_target"] <= 20


def test_a_target_is_seen_when_it_is_reached_however_long_the_run_may_be(found):
    short, long = (found(8, "asynchronous", f"seconds={s}", "rounds=null") for s in (3, 600))
    assert short["detail"] == long["detail"] == "nodes"
    assert long["rounds_to_target"] == pytest.approx(short["rounds_to_target"], abs=0.5)


@pytest.mark.parametrize("schedule", ["lockstep", "asynchronous"])
def test_one_node_agrees_with_itself_and_two_agree_at_once(found, schedule):
    assert found(1, schedule)["rounds_to_target"] == 0
    assert found(1, schedule, "target=null")["bytes_per_node"] == 0
    assert found(2, schedule)["rounds_to_target"] == 1
