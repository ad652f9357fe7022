"""Nodes under `together` that wait for each other for seconds.

A busy machine may keep one of them from running for so long. It would be left out of a round, as
promised, and its values would differ; where values are compared, that is no finding.
"""

from contextlib import contextmanager
from unittest import mock

WAITS_S = 10.0


@contextmanager
def patience():
    with (
        mock.patch("dpwa.policy.wait_budgets.MAX_WAIT_S", WAITS_S),
        mock.patch("dpwa.collectives.paced.MIN_EXCHANGE_S", WAITS_S),
    ):
        yield
