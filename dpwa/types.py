"""Values without behaviour that several packages use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Protocol, SupportsFloat

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from dpwa.errors import ParametersError

if TYPE_CHECKING:
    from typing_extensions import LiteralString

REFUSAL = "dpwa_refusal"
TRACE_BYTES = 68  # of the trace of how a training began
MAX_CLOCK = 2.0**53  # up to this number, floats count single updates

Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class StrictModel(BaseModel):
    """A frozen, validated value that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def refusal(
    expected: str, known: Sequence[str] = (), *, kind: LiteralString = REFUSAL
) -> PydanticCustomError:
    """Return a validator's error "expected ...", with suggestions from the `known` names.

    Callers that treat some refusals differently distinguish them by `kind`.
    """
    context = {"expected": expected, "known": tuple(known)}
    return PydanticCustomError(kind, "expected {expected}", context)


class Unlike(Enum):
    """How nodes react if their values of a setting differ, as metadata of the setting's field.

    The default is `ALLOWED`.
    """

    ALLOWED = "may differ"
    WARNS = "must be equal, or nodes warn"
    WARNS_IF_AVERAGED = "must be equal with `algorithm: together`, or nodes warn"
    REFUSES = "must be equal, or nodes do not merge each other"


class NoOptions(StrictModel):
    """The options of a rule that has no options."""


@dataclass(frozen=True)
class TrainingProgress:
    """The training progress of one node. Interpolation rules compare the progress of two nodes."""

    # number of updates, interpolated at each merge like the parameters, so it may fall
    clock: float
    loss: float | None = None  # `None`: not measured; `inf`: diverged
    trace: bytes = b""  # identifies the first parameters, see `dpwa.policy.beginners`


class SupportsItem(Protocol):
    """A scalar of a numerical library, such as a numpy scalar, or a 0-d array or tensor."""

    def item(self) -> Any: ...


Loss = SupportsFloat | SupportsItem | None


def loss_value(loss: Loss) -> float | None:
    """Convert the loss of a training loop into a float that rules can compare.

    Accepts a float, a numpy scalar, a 0-d tensor (with or without a graph) or `None` (not
    measured). A value that is not finite becomes `inf`, which is worse than any other loss, so no
    NaN reaches a rule. A number that is too large for a float also becomes `inf`. A value that is
    not a single number raises `ParametersError`.
    """
    if loss is None:
        return None
    try:
        # float() of a tensor that requires grad would warn.
        value = float(loss.item() if hasattr(loss, "item") else loss)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError):
        raise ParametersError(
            f"a loss must be one number or None, not {loss!r:.80} [DPWA-E114]"
        ) from None
    return value if math.isfinite(value) else math.inf


JsonObject = dict[str, Any]
Frame = bytes | bytearray | memoryview  # one frame of a message
