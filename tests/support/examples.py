"""How many examples the properties are tried with."""

import hypothesis

THOROUGH = 100  # of a property that says nothing else


def examples(thorough):
    """As many examples with `--hypothesis-profile thorough`, and fewer in a usual run."""
    usual = hypothesis.settings.default.max_examples
    return hypothesis.settings(max_examples=max(10, thorough * usual // THOROUGH))
