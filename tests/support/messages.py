"""Every warning and error that dpwa can show, found in its source, and the page that explains them.

python tests/support/messages.py             # all messages, by file
python tests/support/messages.py --missing   # what --add would add
python tests/support/messages.py --add       # gives new rows and messages their codes, see below
python tests/support/messages.py --stale     # rows of the page that stand for no message

`--add` gives the next codes to rows of docs/troubleshooting.md that have none yet, such as
| `beginning` | explanation |. It adds a row at the end of the page for each message that has none,
to be explained and moved to its section. Then it writes dpwa/message_codes.tsv as the page is. The
codes of rows that are gone stay there, without a beginning, and are not used again.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpwa.message_codes import FIELD, as_template, code_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpwa"
PAGE = ROOT / "docs" / "troubleshooting.md"
CATALOGUE = PACKAGE / "message_codes.tsv"
LOGGED = ("warning", "error", "critical", "exception")
LEAST_TEXT = 4  # letters that a beginning needs, to stand for one thing
MOST_BEGINNING = 50  # characters of a row that is proposed
EXPLAIN = "TODO"

# Functions that return, or yield, what others show: the letter of its code, and what stands before.
SENTENCES = {
    ("collectives/entries.py", "mismatch"): ("E", ""),
    ("collectives/runner.py", "_left_behind"): ("E", ""),
    ("launch/ports.py", "_claim_problem"): ("E", ""),
    ("launch/ports.py", "_listen_problem"): ("E", ""),
    ("membership/joining.py", "last_words"): ("E", ""),
    ("membership/joining.py", "line"): ("W", ""),
    ("policy/advice.py", "*"): ("W", "…: "),
    ("policy/far_apart.py", "_compared"): ("W", "…: "),
    ("policy/finishing.py", "__str__"): ("W", "…: "),
    ("policy/lock_in.py", "note"): ("W", "…: "),
    ("policy/quarantine.py", "_put"): ("W", "…: "),
    ("policy/quarantine.py", "_release_all"): ("W", "…: "),
    ("testing/namespaces.py", "namespaces_missing"): ("E", ""),
    ("transport/sockets.py", "_why_not"): ("E", ""),
}
# Methods that are given what they, or others, show.
PASSED_ON = {"_tell": "W", "_note_left_out": "E"}
# Files that show what such functions, or a list of mistakes, have put together.
COMPOSED_IN = {
    "adapters/ranks/group.py",
    "cli/topology.py",
    "collectives/runner.py",
    "config/graphs.py",
    "config/load.py",
    "config/tree.py",
    "launch/ports.py",
    "membership/members.py",
    "node/finish.py",
    "node/leader_table.py",
    "node/merger.py",
    "node/node.py",
    "sim/churn.py",
    "sim/load.py",
    "state/checkpoints.py",
    "tables/pending.py",
    "tables/specs.py",
    "testing/namespaces.py",
    "transport/keyring.py",
    "transport/sockets.py",
}
# What mistakes in a configuration begin with, after the place and the key.
MISTAKES = re.compile("(expected|missing|unknown|duplicate)[ ,]")

_ROW = re.compile(
    r"^\| (?:(?:<a id=\"(?P<anchor>[^\"]*)\"></a>(?P<code>\S+))? *\| )?"
    r"(?P<quotes>`+) ?(?P<beginning>.+?) ?(?P=quotes) \| (?P<why>.*) \|$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Message:
    text: str  # with `…` for whatever is filled in
    where: str  # file and line
    letter: str  # `E` if it is raised, `W` if it is logged

    @property
    def row(self) -> Row | None:
        """The row of the page that stands for it, of several the longest."""
        fits = [row for row in rows() if row.letter in ("", self.letter)]
        fits = [row for row in fits if self.text.startswith(row.beginning)]
        return max(fits, key=lambda row: len(row.beginning), default=None)


@dataclass(frozen=True)
class Row:
    code: str  # empty in a row that has none yet
    anchor: str  # likewise
    beginning: str  # of the messages that it stands for
    why: str  # the explanation

    @property
    def letter(self) -> str:
        return self.code[5:6]

    def __str__(self) -> str:
        text = self.beginning
        longest = max(map(len, re.findall("`+", text)), default=0)
        quotes, space = "`" * (longest + 1), " " * (text[0] == "`" or text[-1] == "`")
        quoted = f"{quotes}{space}{text}{space}{quotes}"
        return f'| <a id="{self.anchor}"></a>{self.code} | {quoted} | {self.why} |'


@functools.cache
def messages() -> list[Message]:
    errors = _error_names(_trees().values())
    found = []
    for path, tree in _trees().items():
        for line, letter, text in _messages_of(path, tree, errors):
            if _letters(text) >= LEAST_TEXT:
                where = f"{path.relative_to(ROOT)}:{line}"
                found.append(Message(" ".join(text.split()), where, letter))
    return found


@functools.cache
def rows() -> list[Row]:
    return [_row(match) for match in _ROW.finditer(PAGE.read_text("utf-8"))]


def missing() -> list[Message]:
    return [message for message in messages() if message.row is None]


def stale() -> list[Row]:
    used = {message.row for message in messages()}
    return [row for row in rows() if row not in used]


def hidden() -> list[str]:
    """Return where something is shown whose text is not in sight; `SENTENCES` tells where it is."""
    errors = _error_names(_trees().values())
    found = []
    for path, tree in _trees().items():
        file = path.relative_to(PACKAGE).as_posix()
        for node, known in () if file in COMPOSED_IN else _with_texts(tree):
            shown = [argument for _, argument in _shown(node, errors)]
            texts = (text for argument in shown for text in _texts(argument, known))
            if shown and max(map(_letters, texts), default=0) < LEAST_TEXT:
                found.append(f"{file}:{node.lineno}")
    return found


def catalogue() -> dict[str, str]:
    """Return the beginning of each code of the package, as the file has them."""
    lines = CATALOGUE.read_text("utf-8").splitlines()
    return {code: beginning for code, _, beginning in (line.partition("\t") for line in lines)}


def with_codes() -> str:
    taken = set(catalogue()) | {row.code for row in rows()}
    wanted = {message.row: message.letter for message in messages() if message.row}

    def coded(match: re.Match[str]) -> str:
        row = _row(match)
        return match[0] if row.code else str(_with_code(row, wanted.get(row, "E"), taken))

    text = _ROW.sub(coded, PAGE.read_text("utf-8")).rstrip()
    proposed = {(_shortened(message.text), message.letter): None for message in missing()}
    for beginning, letter in proposed:
        text += f"\n{_with_code(Row('', '', beginning, EXPLAIN), letter, taken)}"
    return text + "\n"


def add() -> None:
    """Write the page with codes for all, and the catalogue from it."""
    PAGE.write_text(with_codes(), "utf-8")
    rows.cache_clear()
    beginnings = dict.fromkeys(catalogue(), "") | {row.code: row.beginning for row in rows()}
    lines = (f"{code}\t{beginning}\n" for code, beginning in sorted(beginnings.items()))
    CATALOGUE.write_text("".join(lines), "utf-8")


@functools.cache
def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def _row(match: re.Match[str]) -> Row:
    return Row(match["code"] or "", match["anchor"] or "", match["beginning"], match["why"])


def _with_code(row: Row, letter: str, taken: set[str]) -> Row:
    code = next(c for n in range(1, 1000) if (c := f"DPWA-{letter}{n:03}") not in taken)
    taken.add(code)
    return Row(code, code.lower(), row.beginning, row.why)


def _shortened(text: str) -> str:
    return text[:MOST_BEGINNING].rpartition(" ")[0] if len(text) > MOST_BEGINNING else text


def _error_names(trees) -> set[str]:
    bases = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    return _below("DpwaError", bases) - _below("PeerError", bases)


def _below(name: str, bases: dict[str, list[str]]) -> set[str]:
    names = {name}
    while more := {n for n, of in bases.items() if n not in names and names.intersection(of)}:
        names |= more
    return names


def _messages_of(path: Path, tree: ast.Module, errors: set[str]) -> Iterator[tuple[int, str, str]]:
    file = path.relative_to(PACKAGE).as_posix()
    for node, texts in _with_texts(tree):
        for letter, argument in _shown(node, errors):
            for text in _texts(argument, texts):
                yield node.lineno, letter, text
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            letter, before = SENTENCES.get((file, node.name), SENTENCES.get((file, "*"), ("", "")))
            for part in ast.walk(node) if letter else ():
                if isinstance(part, ast.Return | ast.Yield) and part.value is not None:
                    yield from ((part.lineno, letter, before + t) for t in _texts(part.value, {}))
    if file.startswith("config/"):
        parts = {part for node in ast.walk(tree) for part in getattr(node, "values", ())}
        for node in ast.walk(tree):
            text = None if node in parts else _text(node)
            if text is not None and MISTAKES.match(text):
                yield node.lineno, "E", f"…: {text}"


def _with_texts(tree: ast.Module) -> Iterator[tuple[ast.AST, dict[str, list[ast.expr]]]]:
    """Yield each node of a file with what the variables of its function are set to."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = set()
    for function in reversed(functions):  # the inner ones first
        parts = [node for node in ast.walk(function) if node not in inside]
        inside.update(parts)
        texts: dict[str, list[ast.expr]] = {}
        for node in parts:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    texts.setdefault(name, []).append(value)
        yield from ((node, texts) for node in parts)
    yield from ((node, {}) for node in ast.walk(tree) if node not in inside)


def _shown(node: ast.AST, errors: set[str]) -> Iterator[tuple[str, ast.expr]]:
    """Yield letter and text of what a call shows."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr="log"), args=[_, text, *_]):
            yield "W", text
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=name), args=[text, *_]):
            if name in LOGGED:
                yield "W", text
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[text]):
            if name in PASSED_ON and isinstance(text, ast.List | ast.JoinedStr):
                yield PASSED_ON[name], text
        case ast.Call(func=ast.Attribute(value=ast.Name(id="warnings")), args=[text, *_]):
            yield "W", text
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments):
            if name in errors:
                yield from (("E", argument) for argument in arguments[:2])


def _texts(node: ast.expr, known: dict[str, list[ast.expr]]) -> Iterator[str]:
    match node:
        case ast.Name(id=name):
            for value in known.get(name, ()):
                yield from _texts(value, {})
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body, known)
            yield from _texts(orelse, known)
        case _:
            text = _text(node)
            if text is not None:
                yield text


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return as_template(text)
        case ast.JoinedStr(values=values):
            return "".join(_text(value) or FIELD for value in values)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return (_text(left) or FIELD) + (_text(right) or FIELD)
        case ast.List(elts=[first, *_]):
            return _text(first)
    return None


def _letters(text: str) -> int:
    return len(re.sub(r"[^A-Za-z]", "", text))


def main() -> None:
    if "--missing" in sys.argv:
        before = PAGE.read_text("utf-8").splitlines()
        new = [line for line in with_codes().splitlines() if line not in before]
        print(*new, *(f"{message.where}: {message.text}" for message in missing()), sep="\n")
    elif "--add" in sys.argv:
        add()
    elif "--stale" in sys.argv:
        print(*stale(), sep="\n")
    else:
        for message in messages():
            print(f"{message.where}: {code_of(message.text, message.letter)} {message.text}")


if __name__ == "__main__":
    main()
