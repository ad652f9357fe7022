"""A run of real processes, of which one is slow and one is killed: the report names both."""

import time

import pytest
import yaml
from support.commands import run_dpwa
from support.nodes import config_of
from support.pages import Page
from support.processes import ended, start
from support.times import PROCESS_HANGS_AFTER_S


@pytest.mark.slow
def test_the_slow_node_and_the_killed_one_are_named(tmp_path):
    pytest.importorskip("matplotlib")
    config = tmp_path / "nodes.yaml"
    settings = config_of(8, run_log=str(tmp_path / "run"), timeout_ms=500)
    config.write_text(yaml.safe_dump(settings))
    seconds = {f"w{n}": 1.0 if n == 3 else 0.2 for n in range(1, 9)}
    nodes = {n: start("train.py", config, n, s, round(30 / s)) for n, s in seconds.items()}
    with ended(*nodes.values()):
        assert all(node.stdout.readline() for node in nodes.values())
        time.sleep(10)
        nodes["w5"].kill()
        for node in nodes.values():
            node.wait(PROCESS_HANGS_AFTER_S)
    time.sleep(1.0)
    result = run_dpwa("report", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    page = Page((tmp_path / "run" / "report" / "report.html").read_text())
    assert page.mistakes == []
    lines = [line for line in result.stdout.splitlines() if line.startswith("- ")]
    assert [line.split()[1] for line in lines] == ["w5", "w3"]
    for text in (result.stdout, page.text):
        assert "w5 was killed, or its machine failed, at" in text
        assert "The node announced no end. Its log has no end line" in text
        assert "lost the connection to this node" in text
        assert "w3 takes " in text
        assert " x slower" in text
    assert any(words.startswith("Consensus distance.") for words in page.pictures)
