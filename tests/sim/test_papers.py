"""The reproductions of papers: each runs in its short form, and finds what its page says."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from support.processes import ended, start

ROOT = Path(__file__).parent.parent.parent
PAPERS = ROOT / "benchmarks" / "papers"
PAGE = ROOT / "docs" / "papers.md"
SHARED = {"claims", "everything", "swarm", "training"}
NAMES = sorted({path.stem for path in PAPERS.glob("*.py")} - SHARED)
HOLDS, IN_PART = "holds", "holds in part"
# What the short form finds.
FOUND = {
    "epidemic": [HOLDS],
    "exponential_graph": [HOLDS] * 4,
    "gosgd": [IN_PART, HOLDS, HOLDS],
    "gossip_at_scale": [None] * 3,  # by one run each: too few to tell what holds and what in part
    "lsgd": [HOLDS, HOLDS, "does not hold"],
    "moshpit": [HOLDS] * 4,
    "noloco": [HOLDS] * 2,
    "sgp": [HOLDS, HOLDS, IN_PART, HOLDS],
}
TAKE_SECONDS = {"gosgd", "gossip_at_scale", "lsgd", "noloco"}


@pytest.fixture
def script(monkeypatch):
    """Return the module of a script by its name."""
    monkeypatch.syspath_prepend(str(PAPERS))
    yield importlib.import_module
    for name in ("training", "swarm"):  # others may have modules of these names, too
        sys.modules.pop(name, None)


def test_every_reproduction_is_here():
    assert sorted(FOUND) == NAMES


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in TAKE_SECONDS else name
        for name in NAMES
    ],
)
def test_a_reproduction_finds_what_it_found_before(script, name):
    claims = script(name).PAPER.reproduce(seed=0, quick=True)
    for claim in claims:
        print(f"{claim.verdict}: {claim.paper}\n  {claim.ours}")
    for claim, found in zip(claims, FOUND[name], strict=True):
        assert claim.verdict in ((HOLDS, IN_PART) if found is None else (found,))


def test_the_same_seed_gives_the_same_figures(script):
    twice = [script("epidemic").PAPER.reproduce(seed=5, quick=True) for _ in range(2)]
    assert twice[0] == twice[1]


def test_the_page_has_all_of_them_in_the_order_of_the_script(script):
    papers = script("everything").PAPERS
    assert len(papers) == len(NAMES)
    heads = [f"## {paper.title}\n\n{paper.source}. {paper.setting}\n" for paper in papers]
    places = [PAGE.read_text().find(head) for head in heads]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["epidemic", "noloco"])  # little that another processor rounds
def test_the_page_has_the_figures_of_the_full_form(script, name):
    paper = script(name).PAPER
    assert script("claims").markdown(paper, paper.reproduce(0, quick=False)) in PAGE.read_text()


def test_a_script_tells_its_claims_as_json_and_shows_them():
    process = start(PAPERS / "exponential_graph.py", "--quick", "--json", "--seed", 3)
    with ended(process):
        out, shown = process.communicate(timeout=100)
    assert process.returncode == 0, shown
    told = json.loads(out)
    (one,) = told["papers"]
    assert (told["seed"], told["quick"], one["source"]) == (3, True, "arXiv:2110.13363")
    assert [claim["verdict"] for claim in one["claims"]] == [HOLDS] * 4
    assert "holds" in shown
