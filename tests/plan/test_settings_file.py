"""Settings are changed where they stand, and everything else in the file stays as it is."""

import stat

import pytest

from dpwa.config import load_config
from dpwa.errors import ConfigError, UserError
from dpwa.plan.settings_file import changed_text, write_settings

MODERN = """\
# vier Knoten: für alle
nodes:
  - {name: w1, port: 1001}   # the first
  - {name: w2, port: 1002}

codec: none   # of the run
timeout_ms:     2500
merge: delta
"""
ORIGINAL = """\
- nodes:
  - {name: w1, port: 1001}
  - {name: w2, port: 1002}
- codec: 'none'  # of the run
- timeout_ms: 2500
"""
CHANGES = {"codec": "int8", "fraction": 0.25, "timeout_ms": 4000}


@pytest.mark.parametrize("text", [MODERN, ORIGINAL, MODERN.replace("\n", "\r\n"), MODERN.strip()])
def test_values_change_and_nothing_else(text, tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_bytes(text.encode())
    path.chmod(0o640)
    before = load_config(path)
    write_settings(path, CHANGES)
    assert load_config(path) == before.model_copy(update=CHANGES)
    written = path.read_bytes().decode()
    kept = text.replace("'none'", "none").replace("2500", "4000")
    kept = kept.replace("codec: none", "codec: int8")
    assert written.startswith(kept)
    assert written[len(kept) :].split() in (["fraction:", "0.25"], ["-", "fraction:", "0.25"])
    assert ("\r\n" in written) == ("\r\n" in text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_braces_keeps_them():
    text = "{nodes: [{name: w1, port: 1}, {name: w2, port: 2}], codec: none}\n"
    assert changed_text(text, {"codec": "bf16"}, "a.yaml") == text.replace("none", "bf16")
    with pytest.raises(UserError, match="expected one setting a line, to add some; add fraction"):
        changed_text(text, {"fraction": 0.5}, "a.yaml")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("codec: none", "codec: &shared none\nalgorithm: gossip"),
        ("codec: none", "codec: !!str none"),
    ],
)
def test_what_others_may_use_is_left_to_people(old, new):
    with pytest.raises(UserError, match="codec cannot be changed where it stands"):
        changed_text(MODERN.replace(old, new), {"codec": "int8"}, "a.yaml")


def test_a_link_to_the_file_stays_one(tmp_path):
    path, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    path.write_text(MODERN)
    link.symlink_to(path)
    write_settings(link, {"codec": "int8"})
    assert link.is_symlink()
    assert "codec: int8" in path.read_text()


def test_a_change_that_does_not_load_is_not_written(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(MODERN)
    with pytest.raises(ConfigError):
        write_settings(path, {"codec": "no-such-codec"})
    assert path.read_text() == MODERN
    assert list(tmp_path.iterdir()) == [path]
