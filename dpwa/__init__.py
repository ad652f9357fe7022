"""dpwa: peer-to-peer gossip training for PyTorch, without a coordinator.

The names below are loaded on first use, so that `import dpwa` costs almost nothing and never
imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.config import Config, load_config
    from dpwa.connection import DpwaConnection, close_all
    from dpwa.discovery.connect import connect
    from dpwa.errors import ConfigError, DpwaError
    from dpwa.policy.finishing import FinishReport
    from dpwa.policy.interpolation import register_interpolation

__version__ = "0.1.0"

_HOMES = {
    "Config": "dpwa.config",
    "ConfigError": "dpwa.errors",
    "DpwaConnection": "dpwa.connection",
    "DpwaError": "dpwa.errors",
    "DpwaPyTorchAdapter": "dpwa.adapters.pytorch",
    "FinishReport": "dpwa.policy.finishing",
    "close_all": "dpwa.connection",
    "connect": "dpwa.discovery.connect",
    "load_config": "dpwa.config",
    "register_interpolation": "dpwa.policy.interpolation",
}

__all__ = [
    "Config",
    "ConfigError",
    "DpwaConnection",
    "DpwaError",
    "DpwaPyTorchAdapter",
    "FinishReport",
    "__version__",
    "close_all",
    "connect",
    "load_config",
    "register_interpolation",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpwa' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
