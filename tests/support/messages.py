"""Every warning and error that dpwa can show, found in its source, and the page that explains them.

python -m tests.support.messages             # all messages, by file
python -m tests.support.messages --missing   # rows for docs/troubleshooting.md, to be filled in
python -m tests.support.messages --stale     # rows of the page that stand for no message
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpwa"
PAGE = ROOT / "docs" / "troubleshooting.md"
FIELD = "…"  # what differs each time
LOGGED = ("warning", "error", "critical", "exception")
LEAST_TEXT = 4  # letters that a beginning needs, to stand for one thing

_PERCENT = re.compile(r"%%|%[-+ #0]*[\d.*]*[sdgrfiaxXeE]")
_ROW = re.compile(r"^\| (`+) ?(.+?) ?\1 \|", re.MULTILINE)


@dataclass(frozen=True)
class Message:
    """One message of the source.

    Attributes:
        text: with `…` for whatever is filled in.
        where: file and line.
    """

    text: str
    where: str


@functools.cache
def messages() -> list[Message]:
    """Return all messages, in order of file and line."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    errors = _error_names(trees.values())
    found = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            text = _message_of(node, errors)
            if text is not None and len(re.sub(r"[^A-Za-z]", "", text)) >= LEAST_TEXT:
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                found.append(Message(" ".join(text.split()), where))
    return found


def beginnings() -> list[str]:
    """Return the beginnings of messages that the page explains."""
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    return [beginning for _, beginning in _ROW.findall(text)]


def missing() -> list[Message]:
    """Return the messages that no row of the page stands for."""
    known = tuple(beginnings())
    return [message for message in messages() if not message.text.startswith(known)]


def stale() -> list[str]:
    """Return the rows that stand for no message any more."""
    texts = [message.text for message in messages()]
    return [row for row in beginnings() if not any(text.startswith(row) for text in texts)]


def _error_names(trees) -> set[str]:
    """Return the names of all errors that users can get: those of peers never reach them."""
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


def _message_of(node: ast.AST, errors: set[str]) -> str | None:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=name), args=[first, *_]):
            if name == "log":
                return _text(node.args[1])
            return _text(first) if name in LOGGED else None
        case ast.Call(func=ast.Attribute(value=ast.Name(id="warnings"), attr="warn")):
            return _text(node.args[0])
        case ast.Raise(exc=ast.Call(func=function, args=arguments)):
            name = ast.unparse(function).rpartition(".")[2]
            return next(filter(None, map(_text, arguments)), None) if name in errors else None
    return None


def _text(node: ast.AST) -> str | None:
    """Return a text as it is written, with `…` for each part that is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return _PERCENT.sub(FIELD, text)
        case ast.JoinedStr(values=values):
            return "".join(_text(value) or FIELD for value in values)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return (_text(left) or FIELD) + (_text(right) or FIELD)
        case ast.List(elts=[first, *_]):
            return _text(first)
    return None


def main() -> None:
    """Print what was asked for."""
    if "--missing" in sys.argv:
        for message in missing():
            quotes = "``" if "`" in message.text else "`"
            print(f"| {quotes} {message.text} {quotes} | {message.where} |")
    elif "--stale" in sys.argv:
        print(*stale(), sep="\n")
    else:
        for message in messages():
            print(f"{message.where}: {message.text}")


if __name__ == "__main__":
    main()
