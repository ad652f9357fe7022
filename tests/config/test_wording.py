"""No wrong value of any setting is told in the words of the library that checks them."""

import math

import pytest

from dpwa.config import load_config
from dpwa.config.schema import config_schema
from dpwa.errors import ConfigError, UserError
from dpwa.tables.specs import TableSpec, make_spec
from dpwa.tables.updaters import make_updater, updater_names

FOREIGN = ("Value error", "unable to parse", "Input should", "pydantic", "Field required", "valid ")
NOT_OURS = ("should be", "should have", "validation error", "Extra inputs", "should match")
WRONG = [
    *(None, True, False, -1, 0, 0.5, 10**400, math.inf, math.nan, "x", "", "1e999", "-1", "0.5"),
    *(b"x", object(), [], [1], ["x"], [[]], [None], {}, {"x": 1}, {"x": {}}, {1: 2}, [{"a": 1}]),
]
BASE = {"nodes": [{"name": "w1", "port": 1}, {"name": "w2", "port": 2}]}
DEFINITIONS = config_schema()["$defs"]
SETTINGS = DEFINITIONS["Config"]["properties"]


def options_in(schema):
    found = {}
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(key, ()):
            found.update(options_in(part))
    if "$ref" in schema:
        found.update(DEFINITIONS[schema["$ref"].rpartition("/")[2]].get("properties", {}))
    return found


def assert_our_words(told):
    assert not [words for words in FOREIGN + NOT_OURS if words in told], told


def assert_told_well(settings):
    try:
        load_config(settings, environ={})
    except ConfigError as error:
        for problem in error.problems:
            assert_our_words(problem)
            assert "expected" in problem or "unknown key" in problem


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_and_their_options(name):
    for value in WRONG:
        assert_told_well({**BASE, name: value})
        for option in options_in(SETTINGS[name]):
            assert_told_well({**BASE, name: {option: value}})


@pytest.mark.parametrize("key", DEFINITIONS["NodeConfig"]["properties"])
def test_nodes(key):
    for value in WRONG:
        assert_told_well({"nodes": [{"name": "w1", "port": 1, key: value}]})


@pytest.mark.parametrize("key", DEFINITIONS["LinkConfig"]["properties"])
def test_links(key):
    for value in WRONG:
        link = {"between": ["w1", "w2"], "codec": "int8", key: value}
        assert_told_well({**BASE, "links": [link]})


@pytest.mark.parametrize("name", TableSpec.model_fields)
def test_tables(name):
    for value in WRONG:
        try:
            make_spec(**{"rows": 4, name: value})
        except UserError as error:
            assert_our_words(str(error))


@pytest.mark.parametrize("name", updater_names())
def test_updaters(name):
    kind = make_updater(name)
    for option in [*kind.options_model.model_fields, "no_such_option"]:
        for value in WRONG:
            try:
                make_updater(name, {option: value})
            except UserError as error:
                assert_our_words(str(error))
