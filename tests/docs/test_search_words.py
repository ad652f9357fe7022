"""Words by which the search of the site finds a heading at first place: see docs/conf.py."""

import re
from collections import Counter

from support.snippets import ROOT

WORDS = re.compile(r"^(#+ .+)\n<!-- search: (.+) -->$", re.MULTILINE)


ASKED = ("port already in use", "resume from checkpoint", "clock")


def sought():
    """Each word with its heading."""
    pages = [page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))]
    assert sum(page.count("<!-- search:") for page in pages) == sum(
        len(WORDS.findall(page)) for page in pages
    ), "they stand below a heading"
    found = [pair for page in pages for pair in WORDS.findall(page)]
    return [(word.strip(), heading) for heading, words in found for word in words.split(",")]


def test_what_newcomers_look_for_has_a_heading():
    headings = dict(sought())
    for word in ("nan", "stop", "cannot reach", "save the model", "learning rate per node", *ASKED):
        assert word in headings


def test_a_word_has_one_heading_and_is_as_the_search_compares_it():
    words = [word for word, _ in sought()]
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert words == [word.lower() for word in words]
