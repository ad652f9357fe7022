"""The scenarios that come with dpwa."""

from __future__ import annotations

from pathlib import Path

from dpwa.errors import UserError

FOLDER = Path(__file__).parent / "presets"


def preset_names() -> tuple[str, ...]:
    """Return the names of the scenarios that come with dpwa."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def scenario_file(name: str) -> Path:
    """Return the file of a scenario that comes with dpwa, or the one of this path.

    Raises:
        UserError: there is neither.
    """
    names = preset_names()
    if name in names:
        return FOLDER / f"{name}.yaml"
    path = Path(name)
    if path.is_file():
        return path
    from dpwa.config.problems import shown, suggestion

    known, hint = ", ".join(names), suggestion(name, names)
    raise UserError(f"SCENARIO: expected a file, or one of {known} (got {shown(name)}){hint}")
