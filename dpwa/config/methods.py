"""What configurations choose by a word and give options under that word: rules, algorithms, ..."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError

from dpwa.algorithms import algorithm, algorithm_names
from dpwa.policy.interpolation import interpolation, interpolation_names
from dpwa.policy.topology import topology, topology_names
from dpwa.types import Fraction, StrictModel, refusal


class ClipOptions(StrictModel):
    """Options of `robust: clip`."""

    quantile: Fraction = Field(
        default=0.5,
        description="quantile of the recent distances to peers that is the radius for clipping",
    )
    window: int = Field(default=50, ge=5, description="number of distances to remember")


@dataclass(frozen=True)
class Method:
    """A word, what it stands for, and the model of its options."""

    name: str
    kind: str
    options: type[StrictModel]
    described_by: object


@dataclass(frozen=True)
class Kind:
    """A setting whose value is a method."""

    setting: str
    names: Callable[[], tuple[str, ...]]
    method: Callable[[str], Method]


def _interpolation(name: str) -> Method:
    found = interpolation(name)
    return Method(name, "interpolation", found.options, found.rule)


def _algorithm(name: str) -> Method:
    found = algorithm(name)
    return Method(name, "algorithm", found.options_model, found)


def _topology(name: str) -> Method:
    found = topology(name)
    return Method(name, "topology", found.options, found.rule)


def _robust(name: str) -> Method:
    return Method(name, "robust", ClipOptions, ClipOptions)


KINDS = (
    Kind("interpolation", interpolation_names, _interpolation),
    Kind("algorithm", algorithm_names, _algorithm),
    Kind("topology", topology_names, _topology),
    Kind("robust", lambda: ("clip",), _robust),
)


def methods() -> Iterator[Method]:
    """Yield all methods, kind by kind, in the order of registration; this loads all of them."""
    for kind in KINDS:
        yield from map(kind.method, kind.names())


def methods_in_use(settings: Mapping[str, object]) -> Iterator[str]:
    for kind in KINDS:
        name = settings[kind.setting]
        if name in kind.names() and kind.method(str(name)).options.model_fields:
            yield str(name)


def method_names() -> tuple[str, ...]:
    return tuple(name for kind in KINDS for name in kind.names())


def method(name: str) -> Method | None:
    return next((kind.method(name) for kind in KINDS if name in kind.names()), None)


def default_options(model: type[StrictModel]) -> StrictModel | None:
    """Return the default options; `None` if some must be set."""
    try:
        return model()
    except ValidationError:
        return None


def changed_options(value: Mapping[str, object]) -> tuple[tuple[str, StrictModel], ...]:
    """Return options of methods as sorted pairs, without those that only repeat the defaults.

    So `constant: {value: 0.5}` and no `constant` at all give equal configurations.
    """
    pairs: list[tuple[str, StrictModel]] = []
    for name, options in sorted(value.items()):
        found = method(name)
        if found is None:
            raise refusal(f"one of {', '.join(method_names())}", method_names())
        checked = found.options.model_validate(options)
        if checked != default_options(found.options):
            pairs.append((name, checked))
    return tuple(pairs)


def _canonical(value: object) -> object:
    return changed_options(dict(value)) if isinstance(value, (Mapping, tuple)) else value


ChangedOptions = Annotated[
    tuple[tuple[str, SerializeAsAny[StrictModel]], ...], BeforeValidator(_canonical)
]
