"""How help pages are laid out: whole summaries, and no word broken on a narrow terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

WIDEST = 80
NARROW = 56  # columns below which a description stands under what it describes
EXAMPLES = "Examples:"  # begins the part of a docstring with commands, one a line
_Formatter: Any = typer.Context.formatter_class


class HelpFormatter(_Formatter):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "width": _columns()})

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        if self.width >= NARROW:
            super().write_dl(rows, col_max, col_spacing)
            return
        for name, description in rows:
            self.write(f"{self._wrapped(name, '    ')}\n")
            if description:
                self.write(f"{self._wrapped(description, '', '  ')}\n")

    def write_text(self, text: str) -> None:
        r"""Write paragraphs; lines after `\b` or `Examples:` stay, unless they are too long."""
        blocks = []
        for block in text.split("\n\n"):
            first, _, rest = block.strip("\n").partition("\n")
            is_kept = first.strip() in ("\b", EXAMPLES)
            lines = textwrap.dedent(rest if is_kept else block).splitlines()
            if is_kept:
                heading = [self._wrapped(EXAMPLES)] if first.strip() == EXAMPLES else []
                blocks += ["\n".join([*heading, *map(self._command_line, lines)])]
            else:
                blocks += [self._wrapped(" ".join(line.strip() for line in lines))]
        self.write("\n\n".join(blocks) + "\n")

    def _wrapped(self, text: str, more: str = "", less: str = "") -> str:
        indent = " " * self.current_indent + less
        return textwrap.fill(
            " ".join(text.split()),
            self.width,
            initial_indent=indent,
            subsequent_indent=indent + more,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _command_line(self, line: str) -> str:
        indent = " " * (self.current_indent + 2)
        wrapped = textwrap.wrap(
            line,
            self.width - 2,
            initial_indent=indent,
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        return " \\\n".join(wrapped)


class HelpContext(typer.Context):
    formatter_class = HelpFormatter

    @property
    def command_path(self) -> str:
        """The words of the command, without arguments of the group that it is in."""
        name = self.info_name or ""
        return f"{self.parent.command_path} {name}" if self.parent else name

    @contextmanager
    def scope(self, cleanup: bool = True) -> Iterator[Any]:
        """Say what is wrong with an option as everything else of dpwa does."""
        try:
            with super().scope(cleanup) as context:
                yield context
        except typer.BadParameter as wrong:
            cause: Any = wrong.__cause__  # pydantic's, by which typer reads options
            if hasattr(cause, "errors"):
                wrong.message = _expectation(cause.errors()[0])
            raise


class HelpGroup(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the whole first sentence of its help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, summary(command.help)) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def summary(text: str | None) -> str:
    """Return the first paragraph of a help text on one line, without a full stop at its end."""
    first = (text or "").strip().partition("\n\n")[0]
    return " ".join(first.split()).removesuffix(".")


def with_help(command: Any) -> Any:
    """Have a command, and all below it, explain itself as this module says; return it."""
    command.context_class = HelpContext
    for below in getattr(command, "commands", {}).values():
        with_help(below)
    return command


def _expectation(error: dict[str, Any]) -> str:
    from dpwa.config.problems import shown  # which imports numpy: help needs none

    bounds = error.get("ctx", {})
    if error["type"] == "value_error":  # in words of typer's own
        return str(bounds["error"])
    expected = {
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "float_parsing": "a number",
        "greater_than": f"a number above {bounds.get('gt')}",
        "greater_than_equal": f"a number of at least {bounds.get('ge')}",
        "less_than": f"a number below {bounds.get('lt')}",
        "less_than_equal": f"a number of at most {bounds.get('le')}",
    }.get(error["type"], "another value")
    return f"expected {expected} (got {shown(str(error['input']))})"


def _columns() -> int:
    return max(min(shutil.get_terminal_size().columns, WIDEST), 20)
