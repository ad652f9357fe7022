"""A removed module of 2017. Importing it raises an error that names its replacement."""

raise ModuleNotFoundError(
    "dpwa.interpolation is gone since 2017: `interpolation: constant`, `clock` or `loss` in the "
    "configuration chooses a rule, and `from dpwa import register_interpolation` adds one of your "
    "own; see docs/migration.md",
    name="dpwa.interpolation",
)
