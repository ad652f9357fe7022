"""Raise an error that names the replacement of this module, which was removed after 2017."""

raise ModuleNotFoundError(
    "dpwa.interpolation was removed after 2017. Set `interpolation: constant`, `clock` or `loss` "
    "in the configuration. `from dpwa import register_interpolation` registers your own rule. See "
    "docs/migration.md",
    name="dpwa.interpolation",
)
