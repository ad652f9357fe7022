"""The troubleshooting page explains every warning and error that users can see, by its code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from dpwa import errors

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text("utf-8") for path in sorted((ROOT / "dpwa").rglob("*.py"))}
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
ROW = re.compile(r'^\| <a id="(.*?)"></a>(\S+) \| (`+) ?(.+?) ?\3 \| (.*) \|$', re.MULTILINE)
ROWS = [(code, beginning, anchor, why) for anchor, code, _, beginning, why in ROW.findall(PAGE)]
GONE = re.findall(r"DPWA-[EW]\d{3}", PAGE.rpartition("Codes of messages that are gone")[2])
ERRORS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, errors.DpwaError)
    and not issubclass(kind, errors.PeerError)
}
LOGGED = {"warning", "error", "critical", "exception"}


def test_what_is_shown_has_codes_of_the_page_and_each_of_these_is_shown_somewhere():
    codes = [code for code, *_ in ROWS]
    assert sorted(set(codes)) == sorted(codes), "two rows have one code"
    shown = {code for text in SOURCES.values() for code in re.findall(r"\[(DPWA-\w+)\]", text)}
    assert shown == set(codes)


def test_no_code_is_given_twice():
    numbers = sorted([code for code, *_ in ROWS] + GONE)
    for letter in "EW":
        given = [code for code in numbers if code[5] == letter]
        assert given == [f"DPWA-{letter}{n:03}" for n in range(1, len(given) + 1)]


def test_every_row_has_an_anchor_and_an_explanation():
    assert len(ROWS) == PAGE.count("</a>DPWA-") > 100
    for code, beginning, anchor, why in ROWS:
        assert anchor == code.lower()
        assert len(why) > 10, code
        assert "as above" not in why.lower(), f"{code}: links lead to one row"
        assert [row[0][5] for row in ROWS if row[1] == beginning].count(code[5]) == 1, beginning


def test_every_row_begins_as_a_message_does_and_every_text_that_is_shown_has_a_code():
    texts, bare = "", []
    for path, source in SOURCES.items():
        tree = ast.parse(source)
        texts += "\n".join(literals(tree)) + "\n"
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and shows(call.func):
                text = "".join(text for argument in call.args for text in literals(argument))
                if re.search("[A-Za-z]{3}", text) and "[DPWA-" not in text:
                    bare.append(f"{path}:{call.lineno}: {text}")
    assert bare == [], "see CONTRIBUTING.md"
    for code, beginning, *_ in ROWS:
        longest = max(re.split(r"…(?:: )?", beginning), key=len).strip("` ")
        assert longest in texts, f"{code}: {beginning}"


def shows(function: ast.expr) -> bool:
    """Return whether a call of it makes an error, or logs a warning."""
    match function:
        case ast.Attribute(value=ast.Name(id="log"), attr=name):
            return name in LOGGED
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in ERRORS
    return False


def literals(tree: ast.AST) -> Iterator[str]:
    """Yield the texts that are written in a part of a program, with `…` for what is filled in."""
    match tree:
        case ast.Constant(value=str(text)):
            yield re.sub(r"%[-+ #0]*[\d.*]*[sdgrfx]", "…", text)
        case ast.JoinedStr(values=values):
            yield "".join(
                "".join(literals(v)) if isinstance(v, ast.Constant) else "…" for v in values
            )
        case _:
            for part in ast.iter_child_nodes(tree):
                yield from literals(part)
