"""The page docs/cli.md: every command with its options, as `--help` shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from dpwa.cli.main import COMMAND

HEAD = """\
# Command line

This page lists the commands of `dpwa` with their arguments and options, as `dpwa COMMAND --help` shows them.
`python docs/generate.py` writes this page.
"""  # noqa: E501
MIN_COMMANDS = 3  # an option that as many commands have, with the same text, is explained once


def page() -> str:
    """Return the whole page."""
    commands = list(_commands("dpwa", COMMAND))
    lines = [HEAD, "| command | what it does |", "|---|---|"]
    for name, command in commands[1:]:
        anchor = name.replace(" ", "-")
        lines.append(f"| [`{name}`](#{anchor}) | {_cell(command.short_help)} |")
    options = Counter(row for name, command in commands for row in _options(name, command))
    common = {row for row, count in options.items() if count >= MIN_COMMANDS}
    for number, (name, command) in enumerate(commands):
        lines += ["", *_section(name, command, common)]
        if number == 0:
            lines += ["", "## Options of several commands", "", *_table(sorted(common))]
    return "\n".join(lines).rstrip() + "\n"


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for below, found in getattr(command, "commands", {}).items():
        if not found.hidden:
            yield from _commands(f"{name} {below}", found)


def _section(name: str, command: Any, common: set[tuple[str, str]]) -> Iterator[str]:
    context = command.context_class(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"## {name}", "", "```text", f"{name} {usage}", "```", "")
    yield from _paragraphs(command.help or "")
    options = _options(name, command)
    yield from _table([row for row in options if row not in common])
    shared = [f"`{row[0]}`" for row in options if row in common]
    if shared:
        yield from (
            "",
            f"[Options of several commands](#options-of-several-commands): {', '.join(shared)}",
        )


def _options(name: str, command: Any) -> list[tuple[str, str]]:
    """Return the arguments and options of a command, each with its meaning."""
    context = command.context_class(command, info_name=name)
    rows = [parameter.get_help_record(context) for parameter in command.params]
    return [row for row in rows if row]


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield from ("| argument or option | meaning |", "|---|---|")
    yield from (f"| `{_cell(option)}` | {_cell(meaning)} |" for option, meaning in rows)


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
