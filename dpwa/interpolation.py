"""A removed module of 2017. Importing it raises an error that names its replacement."""

raise ModuleNotFoundError(
    "dpwa.interpolation is gone since 2017. Set `interpolation: constant`, `clock` or `loss` in "
    "the configuration. `from dpwa import register_interpolation` adds a rule of your own. See "
    "docs/migration.md",
    name="dpwa.interpolation",
)
