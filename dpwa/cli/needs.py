"""What some commands need, and what they say where it is missing."""

from __future__ import annotations

import importlib

from dpwa.errors import UserError


def require_torch(command: str) -> None:
    """Say in one line that torch is missing, where its import would end in a traceback.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise UserError(
            f"{command} needs PyTorch, which cannot be imported ({error}); "
            "install it with: pip install -c constraints.txt torch"
        ) from None
