"""docs/architecture.md has the protocol as it is: its version, and each message with its fields."""

import re
import typing
from pathlib import Path

import pytest

from dpwa.wire.limits import PROTOCOL_VERSION
from dpwa.wire.messages import Message

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
PROTOCOL = PAGE.partition("## The protocol on the wire")[2].partition("\n## ")[0]
KINDS = {kind.model_fields["type"].default: kind for kind in typing.get_args(Message)}
ROWS = {
    name: row
    for row in re.findall(r"^\| `.*$", PROTOCOL, re.MULTILINE)
    for name in re.findall(r"`(\w+)`", row.split("|")[1])
}
# What rows may refer to in words.
SAID = {
    "as a vote begins": {"tag", "name", "incarnation", "view", "number"},
    "the same without": {"tag", "name", "incarnation", "view", "number"},
    "as all": {"name", "incarnation", "view"},
    "of a stream": {"name", "incarnation", "view", "number"},
}


def test_the_version_is_that_of_the_code():
    assert f"## The protocol on the wire, version {PROTOCOL_VERSION}\n" in PAGE


def test_all_messages_have_a_row_and_there_are_no_others():
    assert ROWS.keys() == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_a_row_has_the_fields_of_its_message(name):
    told = "|".join(ROWS[name].split("|")[2:])
    said = set().union(*(fields for text, fields in SAID.items() if text in told))
    fields = KINDS[name].model_fields.keys() - {"type", "request", *said}
    assert sorted(field for field in fields if f"`{field}`" not in told) == []
