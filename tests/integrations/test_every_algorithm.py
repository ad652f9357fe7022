"""Examples and integrations under each algorithm, as they are."""

import re
import time

import pytest
from support import trainers

ALGORITHMS = (
    "gossip", "together", "lsgd", "symmetric", "push_sum", "outer", "noloco", "local", "elastic",
)  # fmt: skip
NEEDS = {
    "transformers_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "lightning_trainer": "lightning",
    "quickstart": "torch",
    "lora": "torch",
    "shared_data": "torch",
}
CHECKED_ALWAYS = {("transformers_trainer", "together")}


def cases():
    for example in NEEDS:
        for algorithm in ALGORITHMS:
            marks = () if (example, algorithm) in CHECKED_ALWAYS else pytest.mark.slow
            yield pytest.param(example, algorithm, marks=marks)


@pytest.mark.parametrize(("example", "algorithm"), [*cases()])
def test_an_example_runs_under_each_algorithm(tmp_path, monkeypatch, example, algorithm):
    pytest.importorskip(NEEDS[example], reason="needs an extra")
    monkeypatch.setenv("DPWA_ALGORITHM", algorithm)
    began = time.monotonic()
    printed = trainers.launch(tmp_path, trainers.EXAMPLES / f"{example}.py")
    assert "Traceback" not in printed
    assert "DPWA-W062" not in printed
    if example == "quickstart":
        assert time.monotonic() - began < 25.0, algorithm
    if "finish" in printed:
        assert len(re.findall(r"finished together with w[12]", printed)) == 2, printed


@pytest.mark.parametrize(
    "library", ["accelerate", pytest.param("lightning", marks=pytest.mark.slow)]
)
def test_under_together_the_first_step_is_taken_together_too(tmp_path, library):
    pytest.importorskip(library, reason="needs an extra")
    program = trainers.PROGRAMS / "first_step_node.py"
    printed = trainers.launch(tmp_path, program, library)
    told = [re.findall(rf"{node} \| after a step: (\S+)", printed) for node in ("w1", "w2")]
    assert len(told[0]) >= 4
    assert told[0] == told[1]
    assert len(set(told[0])) >= 4
