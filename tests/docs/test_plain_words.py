"""The pages have no more of the shapes that readers read twice than `plain_words.json` allows.

The numbers of that file only go down. `python tests/docs/test_plain_words.py` lowers those that are
too high, and prints every sentence that has such a shape.
"""

import json
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("plain_words.json")
FROM_DOCSTRINGS = {"api.md", "scenario-keys.md", "settings.md"}
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in FROM_DOCSTRINGS),
]
SHAPES = {  # with the cure
    "; (write two sentences, or because, if, so)": r"; ",
    "what as a noun (name the thing)": r"\b[Ww]hat\b(?! (?:to|was expected)\b)(?![^.|]*\?)",
    "a person for a node (node, peer, no node)": (
        r"\b(?i:who|whoever|whom|nobody|everybody|anybody|somebody)\b"
    ),
    "an idiom (admit, adopt, rejoin, pick, in sync, continue)": (
        r"\b(?:(?:take|takes|taking|taken|took|let|lets) (?:in|over)|(?:go|goes|going|gone|went) on"
        r"|in step|(?:in|out of|keeps?) pace|drawn|so many|without a word)\b"
    ),
}
LONG = "more than 35 words (write two sentences)"
IN_CELLS = list(SHAPES)[1:]  # a cell of a table may have two remarks
NOT_PROSE = re.compile(
    r"```.*?```|<!--.*?-->|<[a-z/][^>]*>|!\[[^]]*\]|^ {4}[^\n]*$|^#[^\n]*$|`[^`\n]*`|\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)


def shapes_of(page: str) -> list[tuple[str, str]]:
    """Return each shape in a page with its sentence, or its cell of a table."""
    prose = NOT_PROSE.sub(lambda found: "x" if found[0].startswith("`") else " ", page)
    lines = prose.splitlines()
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
    text = "\n".join(line for line in lines if not line.startswith("|"))
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)
    sentences = [one for block in blocks for one in re.split(r"(?<=[.?!:])\s+", block)]
    found = [(shape, one) for one in sentences for shape in SHAPES if re.search(SHAPES[shape], one)]
    found += [(shape, one) for one in cells for shape in IN_CELLS if re.search(SHAPES[shape], one)]
    found += [(LONG, one) for one in sentences if len(re.findall(r"\w[\w'-]*", one)) > 35]
    return [(shape, " ".join(one.split())) for shape, one in found]


def test_no_page_has_more_sentences_that_are_read_twice():
    allowed = json.loads(ALLOWED.read_text(encoding="utf-8"))
    for path in PAGES:
        found = shapes_of(path.read_text(encoding="utf-8"))
        for shape, count in Counter(shape for shape, _ in found).items():
            sentences = [sentence for kind, sentence in found if kind == shape]
            assert count <= allowed.get(path.name, {}).get(shape, 0), (path.name, shape, sentences)


def test_limits_are_called_max_and_min():
    for path in (ROOT / "dpwa").rglob("*.py"):
        found = re.findall(r"\b_?(?:MOST|LEAST)_[A-Z]\w*", path.read_text(encoding="utf-8"))
        assert found == [], path


def test_shapes_are_found_in_prose_only():
    page = "# Who\n\nIt goes on; what `a; who` is.\n\n```\nwho; what\n```\n\n| a; b | who |\n"
    semicolon, what, person, idiom = SHAPES
    assert [shape for shape, _ in shapes_of(page)] == [semicolon, what, idiom, person]


if __name__ == "__main__":
    allowed = json.loads(ALLOWED.read_text(encoding="utf-8")) if ALLOWED.exists() else None
    kept: dict[str, dict[str, int]] = {}
    for path in PAGES:
        for shape, sentence in shapes_of(path.read_text(encoding="utf-8")):
            print(f"{path.name}: {shape.partition(' (')[0]}: {sentence}")
            of_page = kept.setdefault(path.name, {})
            of_page[shape] = of_page.get(shape, 0) + 1
            if allowed is not None:
                of_page[shape] = min(of_page[shape], allowed.get(path.name, {}).get(shape, 0))
    ALLOWED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
