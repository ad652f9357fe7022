"""What is known of a link: its latency and its bandwidth, typed or measured."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import Field, ValidationError

from dpwa.errors import UserError
from dpwa.node.serving.upload import BYTES_PER_MBIT
from dpwa.types import StrictModel

STDIN = "-"
MAX_FILE_BYTES = 64 * 1024


class LinkFigures(StrictModel):
    """A link between two machines, as both `dpwa bench link` and `dpwa status --json` measure it.

    Attributes:
        latency_ms: from a request to the header that answers it, in milliseconds.
        bandwidth_mbps: payload of one stream, in 10^6 bits per second, one way.
    """

    latency_ms: float = Field(ge=0.0, allow_inf_nan=False)
    bandwidth_mbps: float = Field(gt=0.0, allow_inf_nan=False)

    @property
    def latency_s(self) -> float:
        """Latency in seconds."""
        return self.latency_ms / 1000

    @property
    def bytes_per_s(self) -> float:
        """Payload bytes that come in a second."""
        return self.bandwidth_mbps * BYTES_PER_MBIT


class _Measured(LinkFigures, extra="ignore"):
    """A JSON object that has the figures, and may say more."""


def read_link(source: str) -> LinkFigures:
    """Read what `dpwa bench link HOST --json` has printed, from a file or from standard input.

    Args:
        source: the path of a file, or `-`.

    Raises:
        UserError: it cannot be read, or is something else.
    """
    where = "standard input" if source == STDIN else source
    try:
        if source == STDIN:
            text = sys.stdin.read(MAX_FILE_BYTES)
        else:
            with Path(source).open(encoding="utf-8") as file:
                text = file.read(MAX_FILE_BYTES)
        found = _Measured.model_validate_json(text)
    except OSError as error:
        raise UserError(f"--link {where}: cannot be read ({error.strerror})") from None
    except (ValidationError, UnicodeDecodeError):
        raise UserError(
            f"--link {where}: expected the output of `dpwa bench link HOST --json`, "
            "with latency_ms and bandwidth_mbps"
        ) from None
    return LinkFigures(latency_ms=found.latency_ms, bandwidth_mbps=found.bandwidth_mbps)
