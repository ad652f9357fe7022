"""`./scripts/test --long` runs all that is long, and says how each part ended."""

import re
import sys

import long
import pytest


@pytest.fixture
def parts(monkeypatch, tmp_path):
    """Let other parts run, some only for a second; what they print is in a folder."""
    monkeypatch.setattr(long, "SAID", tmp_path)
    monkeypatch.setattr(long, "PARTS", {
        "good": (("-c", "print('all of it'); print('| 7 held ==')"), 1),
        "bad": (("-c", "import sys; sys.exit('it broke')"), 1),
        "stuck": (("-c", "import time; time.sleep(60)"), 0.02),
    })  # fmt: skip
    return tmp_path


def run(monkeypatch, *names):
    monkeypatch.setattr(sys, "argv", ["long.py", *names])
    with pytest.raises(SystemExit) as caught:
        long.main()
    return caught.value.code


def test_the_parts_that_are_named_run_and_what_each_said_last_is_shown(parts, monkeypatch, capsys):
    assert run(monkeypatch, "good") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "| `good` | holds | 0.0 min | / 7 held |"
    assert (parts / "good.txt").read_text() == "all of it\n| 7 held ==\n"


def test_what_fails_or_takes_too_long_is_told_and_the_others_run_all_the_same(
    parts, monkeypatch, capsys
):
    assert run(monkeypatch, "bad", "stuck", "good") == 1
    *_, bad, stuck, good = capsys.readouterr().out.splitlines()
    assert bad == "| `bad` | FAILED (1) | 0.0 min | it broke |"
    assert stuck.startswith("| `stuck` | FAILED (longer than 0.02 min) |")
    assert good.startswith("| `good` | holds |")


def test_a_part_that_there_is_not_is_refused(parts, monkeypatch, capsys):
    assert run(monkeypatch, "food") == 2
    assert "no part is named food; expected some of good, bad, stuck" in capsys.readouterr().err


def test_all_campaigns_are_parts_and_on_the_page():
    campaigns = {
        f"tests/campaigns/{path.name}"
        for path in (long.ROOT / "tests" / "campaigns").glob("*.py")
        if not path.name.startswith("test_")
    }
    run_there = {word for arguments, _ in long.PARTS.values() for word in arguments}
    assert campaigns <= run_there
    page = (long.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    told = page.partition("\n## All that is long\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in told.splitlines() if row.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == long.PARTS.keys()
    assert all((long.ROOT / word).exists() for word in run_there if word.startswith("tests/"))
