"""Updaters by name, for tests of what all of them have in common."""

from dpwa.tables.updaters import make_updater, updater_names

OF_ANY_FORM = tuple(name for name in updater_names() if make_updater(name).form is None)
