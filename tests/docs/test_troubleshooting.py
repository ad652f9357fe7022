"""The troubleshooting page explains every warning and error that users can see, by its code."""

import re

import pytest
from support.messages import (
    CATALOGUE,
    EXPLAIN,
    PACKAGE,
    Message,
    catalogue,
    hidden,
    messages,
    missing,
    rows,
    stale,
)

from dpwa.message_codes import code_of


def test_every_message_is_explained():
    found = "\n".join(f"  {message.where}: {message.text}" for message in missing())
    assert not found, (
        f"docs/troubleshooting.md has no row for these messages:\n{found}\n"
        "`python tests/support/messages.py --add` adds rows to be explained"
    )


def test_no_message_is_out_of_sight():
    assert hidden() == [], "tests/support/messages.py: SENTENCES names what makes the text"


def test_every_row_stands_for_a_message():
    assert stale() == [], "`python tests/support/messages.py --stale` lists them"


def test_every_row_has_a_code_an_anchor_and_an_explanation():
    assert len(rows()) > 100
    for row in rows():
        assert re.fullmatch(r"DPWA-[EW]\d{3}", row.code), f"{row}: --add gives it a code"
        assert row.anchor == row.code.lower()
        assert row.why
        assert EXPLAIN not in row.why, f"{row.code} is to be explained"
        assert "as above" not in row.why.lower(), f"{row.code}: links lead to one row"


def test_no_row_and_no_code_is_there_twice():
    for found in ([row.code for row in rows()], [(row.letter, row.beginning) for row in rows()]):
        assert sorted(set(found)) == sorted(found)


def test_the_package_knows_the_codes_of_the_page():
    in_use = {code: beginning for code, beginning in catalogue().items() if beginning}
    assert in_use == {row.code: row.beginning for row in rows()}, "--add writes them"
    lines = CATALOGUE.read_text("utf-8").splitlines()
    assert lines == sorted(lines)
    assert len(catalogue()) == len(lines)


@pytest.mark.parametrize("filled", ["…", "w1", "17", "'a name'", "/tmp/run.yaml:3:7"])
def test_the_code_of_a_message_is_found_whatever_is_filled_in(filled):
    def of(message: Message) -> str | None:
        return code_of(message.text.replace("…", filled), message.letter)

    wrong = [(m.where, m.text, of(m)) for m in messages() if m.row and of(m) != m.row.code]
    assert wrong == []


def test_what_is_logged_goes_through_loggers_that_add_codes():
    direct = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "logging.getLogger(" in path.read_text("utf-8")
    ]
    setting_levels = ["node/node.py", "sim/nodes/engine.py"]
    assert sorted(direct) == ["message_codes.py", *setting_levels], "log = get_log(NAME)"


def test_messages_are_found_in_all_forms():
    texts = [message.text for message in messages()]
    assert "…: refused …, whose key is not allowed: … (fingerprint …)" in texts  # logged
    assert "…: remembers no members: … …" in texts  # from a variable
    assert "…: exists already; --force overwrites it" in texts  # an f-string
    assert "…: peer … ……" in texts  # of a level that varies
    assert "…: exists already, and keys are never overwritten" in texts  # returned, to be raised
    assert "…: unknown key, expected none" in texts  # about a configuration
    assert "…: push_sum.probability 0: nobody ever asks" in "\n".join(texts)  # said by another one
    assert not [text for text in texts if "%s" in text]
