"""Values that several rooms pass to each other, with no behaviour of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol, SupportsFloat

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from dpwa.errors import ParametersError

if TYPE_CHECKING:
    from typing_extensions import LiteralString

REFUSAL = "dpwa_refusal"
TRACE_BYTES = 64  # of what is told of the parameters that a training began with
MAX_CLOCK = 2.0**53  # up to which floats count updates one by one

Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class StrictModel(BaseModel):
    """A frozen, validated value that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def refusal(
    expected: str, known: Sequence[str] = (), *, kind: LiteralString = REFUSAL
) -> PydanticCustomError:
    """Return the error that a validator raises to say what it expected.

    Args:
        expected: completes the sentence "expected ...".
        known: names among which to look for the one that was meant.
        kind: the type of the error, for those who treat some refusals differently.
    """
    context = {"expected": expected, "known": tuple(known)}
    return PydanticCustomError(kind, "expected {expected}", context)


class NoOptions(StrictModel):
    """Options of a rule that has none."""


@dataclass(frozen=True)
class TrainingProgress:
    """How far a node has come: what interpolation rules compare.

    Attributes:
        clock: number of updates, interpolated at each merge like the parameters (so not monotone).
        loss: training loss; `None` when the node has not measured one, `inf` when it has diverged.
        trace: of the parameters that the training began with (see `dpwa.policy.beginners`); empty
            if it did not begin on this node, or is unknown.
    """

    clock: float
    loss: float | None = None
    trace: bytes = b""


class SupportsItem(Protocol):
    """A scalar of a numerical library: a numpy scalar, a 0-d array or tensor."""

    def item(self) -> Any:
        """Return it as a plain Python number."""
        ...


Loss = SupportsFloat | SupportsItem | None


def loss_value(loss: Loss) -> float | None:
    """Turn what a training loop calls its loss into a float that rules can compare.

    Accepts a float, a numpy scalar, a 0-d tensor (attached to its graph or not) or `None` (not
    measured). A loss that is not finite becomes `inf`: a diverged node is worse than any other, and
    no NaN ever reaches a rule.

    Raises:
        ParametersError: it is not one number.
    """
    if loss is None:
        return None
    try:
        # A tensor that requires grad warns when it is converted by float().
        value = float(loss.item() if hasattr(loss, "item") else loss)
    except (TypeError, ValueError, RuntimeError):
        raise ParametersError(
            f"a loss must be one number or None, not {loss!r:.80} [DPWA-E114]"
        ) from None
    return value if math.isfinite(value) else math.inf


JsonObject = dict[str, Any]
Frame = bytes | bytearray | memoryview  # one frame of a message
