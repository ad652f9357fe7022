"""The code of docs/testing.md runs as it stands there, and what it tells of dpwa is so."""

import re
from pathlib import Path

import pytest
from support.ports import free_ports

from dpwa.testing import namespaces_missing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()


def block(*words):
    """The first block of code that has all the words."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    return next(code for code in blocks if all(word in code for word in words))


@pytest.fixture(autouse=True)
def _beside_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(block("# train.py"))


@pytest.mark.timeout(30)
def test_the_proxy(capsys):
    code = block("TcpProxy")
    for port, free in zip(("22101", "22102"), free_ports(2), strict=True):
        assert port in code
        code = code.replace(port, str(free))
    exec(code, {})
    assert capsys.readouterr().out.startswith("ProxyCounts(connections=")


def test_the_plan():
    exec(block("FaultyProcess", "SIGSTOP"), {})


def test_the_random_plans(capsys):
    code = block("FaultPlan.random")
    exec(code, {})
    told = capsys.readouterr().out.splitlines()
    assert told[0] in code
    assert len(told) == 3


@pytest.mark.skipif(
    bool(namespaces_missing(loss=True)), reason=namespaces_missing(loss=True) or "they are there"
)
def test_the_namespaces(capfd):
    exec(block("Namespaces"), {})
    told = capfd.readouterr().out
    assert "'10.77.0.4'" in told
    assert "on the first host" in told


def test_the_virtual_network(capsys):
    code = block("VirtualNetwork")
    exec(code, {})
    heard, counts = capsys.readouterr().out.splitlines()
    assert heard in code
    assert "dropped=1" in counts


def test_the_fault_points_are_told():
    points = {
        point
        for path in (ROOT / "dpwa").rglob("*.py")
        for point in re.findall(r'fault_points\.reached\("(\S+)"\)', path.read_text())
    }
    assert "collective.met" in points
    for point in points:
        assert f"`{point}`" in PAGE or f"`{point.partition('.')[0]}.*`" in PAGE, point
