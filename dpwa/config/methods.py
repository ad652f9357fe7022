"""The methods that settings select, such as rules and algorithms, and the methods' options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError

from dpwa.algorithms import algorithm, algorithm_names
from dpwa.policy.interpolation import interpolation, interpolation_names
from dpwa.policy.topology import topology, topology_names
from dpwa.types import Fraction, StrictModel, refusal


class ClipOptions(StrictModel):
    """Options of `robust: clip`."""

    quantile: Fraction = Field(
        default=0.5,
        description="limit for the distance of a merge, as a quantile of the recent distances to "
        "peers",
    )
    window: int = Field(
        default=50, ge=5, description="number of recent distances from which the limit follows"
    )


class Method(NamedTuple):
    """The name of a method, its kind, and the model of its options."""

    name: str
    kind: str
    options: type[StrictModel]
    described_by: object


class Kind(NamedTuple):
    """A setting whose value is a method."""

    setting: str
    names: Callable[[], tuple[str, ...]]
    found: Callable[[str], tuple[type[StrictModel], object]]  # options; object with its docstring

    def method(self, name: str) -> Method:
        return Method(name, self.setting, *self.found(name))


def _interpolation(name: str) -> tuple[type[StrictModel], object]:
    return interpolation(name).options, interpolation(name).rule


def _algorithm(name: str) -> tuple[type[StrictModel], object]:
    return algorithm(name).options_model, algorithm(name)


def _topology(name: str) -> tuple[type[StrictModel], object]:
    return topology(name).options, topology(name).rule


KINDS = (
    Kind("interpolation", interpolation_names, _interpolation),
    Kind("algorithm", algorithm_names, _algorithm),
    Kind("topology", topology_names, _topology),
    Kind("robust", lambda: ("clip",), lambda _: (ClipOptions, ClipOptions)),
)


def named() -> Iterator[tuple[str, Kind]]:
    """Yield the names of all methods with their kinds, kind by kind, in order of registration."""
    for kind in KINDS:
        for name in kind.names():
            yield name, kind


def methods() -> Iterator[Method]:
    """Yield all methods. This imports the modules of all methods."""
    return (kind.method(name) for name, kind in named())


def methods_in_use(settings: Mapping[str, object]) -> Iterator[str]:
    for name, kind in named():
        if settings[kind.setting] == name and kind.method(name).options.model_fields:
            yield name


def method_names() -> tuple[str, ...]:
    return tuple(name for name, _ in named())


def method(name: str) -> Method | None:
    return next((kind.method(name) for each, kind in named() if each == name), None)


def default_options(model: type[StrictModel]) -> StrictModel | None:
    """Return the default options, or `None` if an option has no default."""
    try:
        return model()
    except ValidationError:
        return None


def changed_options(value: Mapping[str, object]) -> tuple[tuple[str, StrictModel], ...]:
    """Return the options of methods as sorted pairs, without options that repeat the defaults.

    So a configuration with `constant: {value: 0.5}` equals a configuration without `constant`.
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
