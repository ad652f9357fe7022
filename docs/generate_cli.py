"""The page docs/cli.md: every command with its options, as `--help` shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpwa.cli.main import COMMAND

HEAD = """\
# Command line

Every command of `dpwa`, with its arguments and options: the same as `dpwa COMMAND --help` shows.
`python docs/generate.py` writes this page.
"""


def page() -> str:
    """Return the whole page."""
    commands = list(_commands("dpwa", COMMAND))
    lines = [HEAD, "| command | what it does |", "|---|---|"]
    for name, command in commands[1:]:
        anchor = name.replace(" ", "-")
        lines.append(f"| [`{name}`](#{anchor}) | {_cell(command.short_help)} |")
    for name, command in commands:
        lines += ["", *_section(name, command)]
    return "\n".join(lines).rstrip() + "\n"


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for below, found in getattr(command, "commands", {}).items():
        if not found.hidden:
            yield from _commands(f"{name} {below}", found)


def _section(name: str, command: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"## {name}", "", "```text", f"{name} {usage}", "```", "")
    yield from _paragraphs(command.help or "")
    rows = [parameter.get_help_record(context) for parameter in command.params]
    shown = [row for row in rows if row]
    if shown:
        yield from ("| argument or option | meaning |", "|---|---|")
        yield from (f"| `{_cell(option)}` | {_cell(meaning)} |" for option, meaning in shown)


def _paragraphs(text: str) -> Iterator[str]:
    r"""Yield the help text as Markdown; lines after `\b` or `Examples:` stay as they are."""
    for block in text.split("\n\n"):
        kept, lines = block.lstrip().startswith("\b"), block.replace("\b\n", "", 1).splitlines()
        if lines[0].strip() == "Examples:":
            yield from ("Examples:", "")
            kept, lines = True, lines[1:]
        if kept:
            yield from ("```console", *(line.strip() for line in lines), "```", "")
        else:
            yield from (" ".join(line.strip() for line in lines).replace("<", r"\<"), "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
