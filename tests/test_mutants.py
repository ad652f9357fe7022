"""The mutants of `python tests/mutants.py` are still mutants of lines that are there."""

import ast
from collections import Counter

import pytest
from mutants import MUTANTS, ROOT

KINDS = {
    "lease", "nonce", "incarnation", "checksum", "vote", "credit", "deadline", "factor",
    "divergence", "version", "acknowledgement", "quarantine", "fsync",
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.kind}-{mutant.file}")
def test_each_line_is_there_once_and_its_mutant_is_another_program(mutant):
    was = (ROOT / "dpwa" / mutant.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(mutant.text(ROOT))) != ast.dump(ast.parse(was))
    assert all((ROOT / place.split("::")[0]).exists() for place in mutant.near.split())


def test_there_are_40_of_all_kinds():
    counts = Counter(mutant.kind for mutant in MUTANTS)
    assert len(MUTANTS) == 40
    assert counts.keys() == KINDS
    assert min(counts.values()) >= 2
