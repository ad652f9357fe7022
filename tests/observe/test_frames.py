"""`dpwa.observe.load`: run logs as tables of pandas, as the documentation shows it."""

import re
import sys
from pathlib import Path

import pytest
from support.run_logs import BEGAN, write_log

import dpwa.observe
from dpwa.errors import UserError

PAGE = Path(__file__).parents[2] / "docs" / "watch.md"


@pytest.fixture
def folder(tmp_path):
    write_log(tmp_path / "runs" / "1", "w1", events=[(3, "joined", "w2")], peers={"w2": 5})
    write_log(tmp_path / "runs" / "1", "w2", seconds=5, ends=False)
    write_log(tmp_path / "runs" / "1", "w2", seconds=5, began=BEGAN + 10, pid=101)
    return tmp_path / "runs" / "1"


def test_the_tables_have_what_the_files_say(folder):
    pytest.importorskip("pandas")
    run = dpwa.observe.load(folder)
    assert run.nodes["node"].tolist() == ["w1", "w2"]
    assert run.nodes["processes"].tolist() == [1, 2]
    assert len(run.samples) == 30
    last = run.samples.groupby("node")["steps"].last()
    assert last.to_dict() == {"w1": 100, "w2": 50}
    assert run.samples["time"].iloc[0].timestamp() == BEGAN + 1
    assert run.events[["node", "kind", "about"]].to_numpy().tolist() == [["w1", "joined", "w2"]]
    assert run.peers[["node", "peer", "merges"]].to_numpy().tolist() == [["w1", "w2", 5]]
    assert len(dpwa.observe.load(folder, most_samples=10).samples) <= 20


def test_the_notebook_of_the_page_runs(folder, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(folder.parents[1])
    (code,) = re.findall(
        r"```python\n(import dpwa.observe\n.*?)```", PAGE.read_text(), flags=re.DOTALL
    )
    names = {}
    exec(code, names)
    assert names["by_second"].shape[1] == 2
    assert names["slowest"] == "w2"


def test_what_is_missing_is_named_with_the_command_that_installs_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"needs pandas: pip .* '\.\[notebook\]'"):
        dpwa.observe.load(folder)


def test_there_are_no_other_names():
    with pytest.raises(AttributeError, match="no attribute 'read'"):
        dpwa.observe.read  # noqa: B018
