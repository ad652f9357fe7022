"""Names that settings have: of methods that are registered, and of Python modules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator

from dpwa.algorithms import algorithm_names
from dpwa.policy.interpolation import interpolation_names
from dpwa.policy.topology import topology_names
from dpwa.types import refusal

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_module_name(value: str) -> bool:
    """Tell whether text could name a Python module."""
    return _MODULE.fullmatch(value) is not None


def _check_module(value: str) -> str:
    if not is_module_name(value):
        raise refusal("the name of a Python module, such as my_rules or package.rules")
    return value


def _one_of(names: Callable[[], tuple[str, ...]]) -> AfterValidator:
    def check(value: str) -> str:
        known = names()
        if value not in known:
            raise refusal(f"one of {', '.join(known)}", known)
        return value

    return AfterValidator(check)


AlgorithmName = Annotated[str, _one_of(algorithm_names)]
TopologyName = Annotated[str, _one_of(topology_names)]
InterpolationName = Annotated[str, _one_of(interpolation_names)]
ModuleName = Annotated[str, AfterValidator(_check_module)]
