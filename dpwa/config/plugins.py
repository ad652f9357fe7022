"""Modules named by a configuration, imported so that the rules they register are known."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from dpwa.config.names import is_module_name
from dpwa.config.problems import Problems, joined
from dpwa.config.tree import ListNode, Node, ScalarNode


def import_plugins(node: Node, folder: Path | None, problems: Problems) -> bool:
    """Import every module of the list `plugins` and note those that cannot be imported.

    Args:
        node: the value of `plugins`; what is no module name at all is left to validation.
        folder: searched for modules first, if given.
        problems: where mistakes are noted.

    Returns:
        Whether all of them could be imported.
    """
    complete = True
    items = node.items if isinstance(node, ListNode) else ()
    with _search(folder):
        for index, item in enumerate(items):
            name = item.value if isinstance(item, ScalarNode) else None
            if not isinstance(name, str) or not is_module_name(name):
                complete = False
                continue
            fault = _import_fault(name)
            if fault:
                complete = False
                message = f"expected a Python module that can be imported (got {name}: {fault})"
                problems.add(item.place, joined("plugins", index), message)
    return complete


def _import_fault(name: str) -> str:
    try:
        with redirect_stdout(sys.stderr):  # what it prints must not end up among the results
            importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises
        reason = " ".join(str(error).split())
        return f"{type(error).__name__}, {reason}" if reason else type(error).__name__
    return ""


@contextmanager
def _search(folder: Path | None) -> Iterator[None]:
    if folder is None:
        yield
        return
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(entry)
