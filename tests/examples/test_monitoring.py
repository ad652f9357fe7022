"""The configuration of Prometheus and the dashboard of Grafana, with a real Prometheus."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples_support import EXAMPLES
from support import processes
from support.nodes import config_of, eventually
from support.ports import free_ports, ports_in_a_row

pytest.importorskip("prometheus_client", reason="needs the extra: pip install dpwa[metrics]")
from support.metrics import all_metrics, name_of

FOLDER = EXAMPLES / "monitoring"
CONFIG = FOLDER / "prometheus.yml"
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
NODES = 4


def queries() -> Iterator[tuple[str, str]]:
    """Every query of the dashboard, with the title of its panel."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def test_the_dashboard_asks_for_nothing_that_is_not_there() -> None:
    known = {name_of(metric) for metric in all_metrics()}
    known |= {name + end for name in known for end in ("_bucket", "_sum", "_count")}
    asked = {name for _, query in queries() for name in re.findall(r"dpwa_\w+", query)}
    assert asked - known == set()
    assert len(asked) > 12


def test_the_dashboard_has_no_data_source_of_its_own() -> None:
    sources = [p["datasource"] for p in DASHBOARD["panels"]]
    sources += [target["datasource"] for p in DASHBOARD["panels"] for target in p["targets"]]
    assert {json.dumps(source) for source in sources} == {
        json.dumps({"type": "prometheus", "uid": "${datasource}"})
    }
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "node"]
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_each_node_is_a_target() -> None:
    (job,) = yaml.safe_load(CONFIG.read_text())["scrape_configs"]
    (targets,) = job["static_configs"]
    assert targets["targets"] == [f"127.0.0.1:{9100 + index}" for index in range(NODES)]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Prometheus and promtool")
def test_a_real_prometheus_sees_all_nodes_and_answers_every_panel(tmp_path: Path) -> None:
    first, other = ports_in_a_row(NODES), free_ports(1)[0]
    text = re.sub(r"127\.0\.0\.1:9(10\d)", lambda m: f"127.0.0.1:{first + int(m[1]) - 100}",
                  CONFIG.read_text())  # fmt: skip
    own = tmp_path / "prometheus.yml"
    own.write_text(text.replace("scrape_interval: 15s", "scrape_interval: 1s"))
    assert text != CONFIG.read_text() != own.read_text()
    for file in (CONFIG, own):
        subprocess.run(["promtool", "check", "config", file], check=True, capture_output=True)
    run = tmp_path / "run.yaml"
    run.write_text(json.dumps(config_of(NODES, transport="tcp", metrics={"port": first})))
    names = [f"w{number}" for number in range(1, NODES + 1)]
    with ExitStack() as stack:
        nodes = [processes.start("train.py", run, name, 0.3) for name in names]
        stack.enter_context(processes.ended(*nodes))
        for node in nodes:
            assert node.stdout.readline(), node.communicate(timeout=20)
        for port in range(first, first + NODES):
            _assert_clean(port)
        prometheus = stack.enter_context(_prometheus(own, tmp_path / "data", other))
        eventually(lambda: _states(prometheus) == ["up"] * NODES, 60.0)
        for title, query in queries():
            _assert_answered(prometheus, title, query)
        found = _ask(prometheus, "query", query="dpwa_node_info")["result"]
        assert sorted(entry["metric"]["node"] for entry in found) == names


def _assert_clean(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@contextmanager
def _prometheus(config: Path, data: Path, port: int) -> Iterator[str]:
    """A Prometheus; the address of its API."""
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    )
    with processes.ended(process):
        yield f"http://127.0.0.1:{port}/api/v1"


def _ask(prometheus: str, what: str, **fields: str) -> Any:
    url = f"{prometheus}/{what}?{urllib.parse.urlencode(fields)}"
    with urllib.request.urlopen(url) as answer:
        return json.loads(answer.read())["data"]


def _states(prometheus: str) -> list[str]:
    try:
        found = _ask(prometheus, "targets")["activeTargets"]
    except OSError:  # it is not there yet
        return []
    return [target["health"] for target in found]


def _assert_answered(prometheus: str, title: str, query: str) -> None:
    """Wait until there is an answer, of all nodes where it is by node, and of numbers."""
    filled = query.replace("$__rate_interval", "10s").replace("$node", ".*")

    def answer() -> bool:
        found = _ask(prometheus, "query", query=filled)["result"]
        by_node = {entry["metric"].get("node") for entry in found}
        is_whole = len(by_node) == NODES or None in by_node
        return is_whole and all(math.isfinite(float(entry["value"][1])) for entry in found)

    try:
        eventually(answer, 30.0, 0.2)
    except AssertionError:
        pytest.fail(f"{title}: {filled} gives {_ask(prometheus, 'query', query=filled)}")
