"""Configurations of very many nodes: refused at once, or read by libyaml as Python would."""

import pytest
import yaml

from dpwa.config import document, load_config
from dpwa.config.document import LONG_TEXT, MAX_VALUES, Document, compose
from dpwa.errors import ConfigError

NEEDS_LIBYAML = pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML has no libyaml here")


def read(text):
    read_into = Document()
    read_into.read(compose(text, "a.yaml"), "a.yaml")
    return read_into.values


def nodes_text(count):
    lines = (
        f"  - {{name: w{n}, host: 10.0.{n >> 8}.{n & 255}, port: 45000}}\n" for n in range(count)
    )
    return "nodes:\n" + "".join(lines)


def test_too_many_values_are_refused_at_the_line_of_the_first(tmp_path):
    file = tmp_path / "many.yaml"
    file.write_text(nodes_text(60_000))
    with pytest.raises(ConfigError) as error:
        load_config(file, environ={})
    line = MAX_VALUES // 4 + 1  # of each node, the mapping and three values
    assert str(error.value).startswith(f"{file}:{line}:")
    assert str(error.value).endswith(
        f"expected at most {MAX_VALUES} values, including those of aliases [DPWA-E214]"
    )


def test_aliases_of_aliases_are_refused_in_long_files_too():
    levels = "".join(f"l{n + 1}: &l{n + 1} [{', '.join([f'*l{n}'] * 9)}]\n" for n in range(9))
    with pytest.raises(ConfigError, match="including those of aliases"):
        read("# long\n" * (LONG_TEXT // 7 + 1) + "l0: &l0 [a, b]\n" + levels)


@NEEDS_LIBYAML
def test_a_long_file_is_read_by_libyaml(monkeypatch):
    monkeypatch.setattr(document, "_Loader", None)
    assert len(read(nodes_text(3000))["nodes"]) == 3000


@NEEDS_LIBYAML
@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_a_long_file_that_is_nested_very_deeply_is_refused(opening):
    with pytest.raises(ConfigError, match="nested too deeply"):
        read(opening * LONG_TEXT)


TEXTS = [
    "a: 1\nb: [x, 'y', \"z\"]\nc:\n- {d: '', e: ~}\n",
    "base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\n",
    "text: |\n  two\n  lines\nfold: >\n  a\n  b\n",
    "täßt: ümläut\n'quoted key': null\n",
    "? [a]\n: b\n",
    "!!python/object:os.system x: y\n",
    "a: !!int 3\n",
    "nodes:\n  - {name: w1, port: 22:22, x: off, y: 1e-3}\n",
]
BROKEN = ["a: [1, 2", "a: b: c", "a: *nobody", "\tx: 1", "a: 'open", "a: 1\n b: 2\n", ""]


def outcome(text):
    read_into = Document()
    try:
        read_into.read(compose(text, "a.yaml"), "a.yaml")
    except ConfigError as error:
        return str(error)
    return vars(read_into)


@NEEDS_LIBYAML
@pytest.mark.parametrize("text", [*TEXTS, *BROKEN])
def test_libyaml_and_python_say_the_same(text, monkeypatch):
    slow = outcome(text)
    monkeypatch.setattr(document, "LONG_TEXT", 0)
    assert outcome(text) == slow


def test_keys_that_merges_bring_again_and_again_are_counted() -> None:
    keys = ", ".join(f"k{index}: 1" for index in range(2000))
    text = f"constant: &a {{{keys}}}\nring: {{<<: [{', '.join(['*a'] * 8000)}]}}\n"
    with pytest.raises(ConfigError, match="E214"):
        read(text)
