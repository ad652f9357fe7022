"""The rooms of docs/architecture.md: each may import only what stands below it."""

import ast
import functools
import graphlib
import importlib
import itertools
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dpwa.errors import UserError
from dpwa.features import FEATURES

PACKAGE = Path(__file__).parent.parent / "dpwa"

# From the ground up. Rooms on one line do not know each other.
STOREYS = [
    {"errors", "clock", "fault_points"},
    {"types", "registry", "features", "lifecycle", "files"},
    {"runtime", "virtual_network"},
    {"policy", "data"},
    {"algorithms"},
    {"config", "wire"},
    {"transport"},
    {"node"},
    {"state", "membership", "observe"},
    {"collectives"},
    {"connection"},
    {"tables"},
    {"adapters", "launch"},
    {"discovery", "dataset"},
    {"integrations"},
    {"distributed", "multiverso"},
    {"dpwa", "conn", "interpolation", "messaging"},  # the names of 2017
    {"plan"},
    {"testing", "report"},
    {"demo"},
    {"sim"},
    {"cli"},
    {"__main__"},
]
STOREY_OF = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}

TORCH_MAY_BE_USED_IN = (
    "adapters/",
    "data/codecs/",
    "data/kernels.py",
    "demo/",
    "discovery/",
    "integrations/",
    "dataset/",
    "launch/spare.py",  # which runs in a process of its own
)
FIRST_NAMES = {  # files that hand out, on first use, what has moved to a room above them
    "__init__.py": {"adapters", "config", "connection", "discovery", "errors", "policy"},
    "data/__init__.py": {"dataset"},
}
PURE_ROOMS = ("policy/", "algorithms/", "wire/")
IMPURE_MODULES = {
    "asyncio",
    "datetime",
    "os",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
    "zmq",
}
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
# Calls of torch.distributed that pickle; the one of `dpwa.distributed` does not.
PICKLING_CALLS = re.compile(
    r"\b(all_gather_object|gather_object|scatter_object_list|broadcast_object_list"
    r"|send_object_list|recv_object_list)\("
)

FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def imported_modules(path):
    return tuple(_imported_modules(path))


def _imported_modules(path):
    """Every module a file imports, at any depth of its code, but not those only for type checks."""
    below = [ast.parse(path.read_text())]
    while below:
        node = below.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            below += node.orelse
        elif not isinstance(node, ast.expr):
            below += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


ROOMS = {room: list(files) for room, files in itertools.groupby(FILES, room_of)}


def loaded_on_first_use(path):
    """Modules that a file imports by a string."""
    if "import_module" not in path.read_text():
        return ()
    tree = ast.parse(path.read_text())
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return tuple(s for s in strings if isinstance(s, str) and s.startswith("dpwa."))


def dpwa_rooms(path):
    """Rooms that a file imports something of."""
    modules = [*imported_modules(path), *loaded_on_first_use(path)]
    parts = [module.split(".") for module in modules]
    return {p[1] for p in parts if p[0] == "dpwa" and len(p) > 1 and p[1] != "__version__"}


def test_the_package_itself_imports_no_room():
    assert all(not m.startswith("dpwa.") for m in imported_modules(PACKAGE / "__init__.py"))


def test_a_room_imports_only_what_is_below_it():
    for path in FILES:
        room = room_of(path)
        for other in dpwa_rooms(path) - {room} - FIRST_NAMES.get(relative(path), set()):
            assert STOREY_OF[other] < STOREY_OF[room], f"{relative(path)} imports of {other}"


def test_folders_of_a_room_import_each_other_in_no_circle():
    """A room's own files may use its folders, and these the room's; folders form an order."""
    names = {relative(path).removesuffix(".py").replace("/", "."): path for path in FILES}
    below = {}
    for name, path in names.items():
        room, *inside = name.split(".")[:-1] or [name]
        for module in imported_modules(path) if inside else ():
            other = module.removeprefix("dpwa.").split(".")
            if other[0] == room and len(other) > 2 and other[1] != inside[0]:
                below.setdefault((room, inside[0]), set()).add((room, other[1]))
    graphlib.TopologicalSorter(below).prepare()  # raises CycleError, with the circle


def test_what_a_feature_adds_is_named_in_one_room_and_in_the_table_alone():
    """Its messages, what is made with a node, its section of the report, and its commands."""
    texts = {path: path.read_text() for path in FILES if room_of(path) != "features"}
    for feature in FEATURES:
        for name in (feature.messages, feature.made_by.replace(":", ".")):
            naming = {room_of(path) for path in texts if name in imported_modules(path)} - {"wire"}
            assert len(naming) <= 1, f"{name}: {naming}"
        command = feature.commands.replace(":", ".")
        assert [path for path in texts if command in imported_modules(path)] == []
        for name in filter(None, (feature.messages, feature.made_by, feature.commands)):
            assert [path for path, text in texts.items() if f'"{name}' in text] == []
        section = f'describe("{feature.section}"'
        telling = [path for path, text in texts.items() if section in text]
        assert len(telling) == bool(feature.section), feature.section


def test_what_is_made_with_a_node_stands_below_what_makes_it():
    for feature in FEATURES:
        if feature.made_by:
            assert STOREY_OF[feature.made_by.split(".")[1]] < STOREY_OF["connection"]


def test_torch_lives_only_in_its_rooms():
    for path in FILES:
        if not relative(path).startswith(TORCH_MAY_BE_USED_IN):
            torch = [m for m in imported_modules(path) if m.split(".")[0] == "torch"]
            assert not torch, relative(path)


def test_nothing_is_pickled():
    for path in FILES:
        assert not PICKLES & set(imported_modules(path)), relative(path)
        if path.name != "distributed.py":
            assert not PICKLING_CALLS.search(path.read_text()), relative(path)


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_policy_and_wire_are_pure(room):
    for path in ROOMS[room.rstrip("/")]:
        modules = set(imported_modules(path))
        assert not IMPURE_MODULES & {module.split(".")[0] for module in modules}, path
        random = {m for m in modules if m.startswith("random.")}
        assert not random, f"{path}: import random, and pass a Random"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random":
                assert node.attr == "Random", f"{path}: randomness is an argument"
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "open"), path


def test_importing_dpwa_is_light_and_has_no_side_effects():
    code = (
        "import sys, threading, dpwa\n"
        "heavy = {'torch', 'numpy', 'zmq', 'pydantic', 'matplotlib', 'sklearn'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert threading.active_count() == 1\n"
        "from dpwa import DpwaConnection\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_programs_import_names_that_exist(folder):
    for path in sorted((PACKAGE.parent / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "dpwa":
                try:
                    module = importlib.import_module(node.module)
                except UserError:  # it needs an extra that is not installed
                    continue
                for name in (alias.name for alias in node.names):
                    is_there = hasattr(module, name) or find_spec(f"{node.module}.{name}")
                    assert is_there, f"{path}: no {name} in {node.module}"
