"""Which settings there are, and which of them are mappings of options."""

from __future__ import annotations

from dpwa.config.model import Config
from dpwa.types import StrictModel


def setting_names() -> tuple[str, ...]:
    """Return the keys that a configuration may have, beside the names of the methods."""
    return tuple(name for name in Config.model_fields if name != "options")


def options_model(setting: str) -> type[StrictModel] | None:
    """Return the model of a setting that is a mapping of options, `None` for any other."""
    kind: object = Config.model_fields[setting].annotation
    return kind if isinstance(kind, type) and issubclass(kind, StrictModel) else None
