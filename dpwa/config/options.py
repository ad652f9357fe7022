"""Options of methods, codecs, checkpoints and metrics: as they are kept, and looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError

from dpwa.config.endpoints import MAX_PORT
from dpwa.config.methods import method, method_names
from dpwa.config.problems import suggestion
from dpwa.errors import UnknownNameError, UserError
from dpwa.types import StrictModel, refusal


class TopKOptions(StrictModel):
    """Options of the codec `topk`."""

    keep: float = Field(
        default=0.01, gt=0.0, le=1.0, description="share of the values that a fetch brings"
    )
    resync_every: int = Field(
        default=50, ge=1, description="every so many fetches, a whole snapshot is fetched"
    )


class CheckpointOptions(StrictModel):
    """Where a node keeps its state on disk, and how often."""

    dir: str = Field(
        default="",
        description="folder of the checkpoints, relative to the folder of this file; empty = none",
    )
    every_steps: int = Field(
        default=1000, ge=1, description="so many updates from a checkpoint to the next"
    )
    keep: int = Field(
        default=3, ge=1, le=1000, description="how many checkpoints of each node are kept"
    )


class MetricsOptions(StrictModel):
    """Where a node serves its metrics to Prometheus."""

    port: int | None = Field(
        default=None,
        ge=0,
        le=MAX_PORT,
        description="of the first of `nodes`, the others have the next ones; 0 = any free port; "
        "null = no metrics are served",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="name or address to listen on")


def options_of(name: str, changed: Mapping[str, StrictModel]) -> StrictModel:
    """Return the options of a method (a rule, an algorithm, ...), its defaults where unset.

    Args:
        name: of the method.
        changed: the options that are set, by the names of the methods.

    Raises:
        UnknownNameError: no such method is registered.
        UserError: it has options without defaults, and they are not set.
    """
    found = method(name)
    if found is None:
        known = method_names()
        what = "interpolation rule, algorithm, topology or kind of robust merging"
        raise UnknownNameError(
            f"no {what} is named {name!r}{suggestion(name, known)} (known: {', '.join(known)})"
        )
    options = changed.get(name) or _defaults(found.options)
    if options is None:
        raise UserError(f"{found.kind} {name!r} needs options, and none are set")
    return options


def _canonical(value: object) -> object:
    """Options of methods as sorted pairs, without those that only repeat the defaults.

    Leaving defaults out makes `constant: {value: 0.5}` and no `constant` at all the same object.
    """
    if not isinstance(value, (Mapping, tuple)):
        return value
    pairs: list[tuple[str, StrictModel]] = []
    for name, options in sorted(dict(value).items()):
        found = method(name)
        if found is None:
            raise refusal(f"one of {', '.join(method_names())}", method_names())
        checked = found.options.model_validate(options)
        if checked != _defaults(found.options):
            pairs.append((name, checked))
    return tuple(pairs)


def _defaults(model: type[StrictModel]) -> StrictModel | None:
    """Return options as they are when nothing is set; `None` if some must be set."""
    try:
        return model()
    except ValidationError:
        return None


ChangedOptions = Annotated[
    tuple[tuple[str, SerializeAsAny[StrictModel]], ...], BeforeValidator(_canonical)
]
