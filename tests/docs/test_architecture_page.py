"""docs/architecture.md names what is there: files, rooms in their order, the protocol."""

import ast
import itertools
import re

from support.snippets import ROOT
from test_import_rules import STOREYS

from dpwa.wire.limits import PROTOCOL_VERSION
from dpwa.wire.messages import message_types

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_files_that_it_names_are_there():
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", PAGE))
    assert len(named) > 60
    roots = [ROOT, ROOT / "dpwa"]
    named = {name for name in named if "NAME" not in name}  # of what one adds
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_the_functions_of_its_walks_are_in_the_files_beside_them():
    walks = PAGE.partition("\n## One round\n")[2].partition("\n### Which wait")[0]
    rows = re.findall(r"^\|[^|]*\|([^|]*`[^|]*)\|([^|]*)\|$", walks, re.M)
    assert len(rows) > 25
    missing = []
    for functions, files in rows:
        trees = [
            ast.parse((ROOT / "dpwa" / file).read_text()) for file in re.findall(r"`(.+?)`", files)
        ]
        classes = [c for tree in trees for c in ast.walk(tree) if isinstance(c, ast.ClassDef)]
        defined = {c.name for c in classes}
        defined |= {f"{c.name}.{f.name}" for c in classes for f in c.body if hasattr(f, "name")}
        missing += [name for name in re.findall(r"`(.+?)`", functions) if name not in defined]
    assert missing == []


def test_the_rooms_stand_in_the_order_of_the_import_rules():
    table = PAGE.partition("\n## The rooms\n")[2].partition("\n- ")[0]
    rows = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in re.findall(r"^\|.*", table, re.M)]
    level = {room: number for number, rooms in enumerate(STOREYS) for room in rooms}
    assert {room for row in rows for room in row} == level.keys()
    levels = [sorted(level[room] for room in row) for row in rows if row]
    assert all(above[0] > below[-1] for above, below in itertools.pairwise(levels))


def test_the_version_of_the_protocol_is_that_of_the_code():
    assert f"## The protocol, version {PROTOCOL_VERSION}\n" in PAGE


def test_each_message_says_what_it_is_where_the_page_sends_readers():
    kinds = message_types()
    places = {kind.__module__.replace("dpwa.", "").replace(".", "/") for kind in kinds}
    assert [place for place in places if f"`{place}.py`" not in PAGE] == []
    assert [kind.__name__ for kind in kinds if "__doc__" not in vars(kind)] == []
    assert [kind.__name__ for kind in kinds if not vars(kind)["__doc__"]] == []
