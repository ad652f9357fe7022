"""The troubleshooting page explains every warning and error that users can see."""

from support.messages import beginnings, messages, missing, stale


def test_every_message_is_explained():
    rows = "\n".join(f"  {message.where}: {message.text}" for message in missing())
    assert not rows, (
        f"docs/troubleshooting.md has no row for these messages:\n{rows}\n"
        "`python tests/support/messages.py --missing` prints rows to be filled in"
    )


def test_every_row_stands_for_a_message():
    assert stale() == [], "`python tests/support/messages.py --stale` lists them"


def test_a_row_is_there_once():
    rows = beginnings()
    assert len(rows) > 100
    assert sorted(set(rows)) == sorted(rows)


def test_messages_are_found_in_all_forms():
    texts = [message.text for message in messages()]
    assert "…: refused …, whose key is not allowed: … (fingerprint …)" in texts  # logged
    assert "…: exists already; --force overwrites it" in texts  # an f-string
    assert "…: peer … ……" in texts  # of a level that varies
    assert not [text for text in texts if "%s" in text]
