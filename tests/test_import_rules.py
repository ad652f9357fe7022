"""The rooms of docs/architecture.md: each may import only what stands below it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dpwa"

# From the ground up. Rooms on one line do not know each other.
STOREYS = [
    {"errors", "clock", "lifecycle", "fault_points"},
    {"types", "registry"},
    {"policy", "data"},
    {"algorithms"},
    {"config", "wire"},
    {"transport"},
    {"node"},
    {"state", "membership"},
    {"collectives"},
    {"connection"},
    {"tables"},
    {"adapters", "launch"},
    {"distributed", "multiverso"},
    {"dpwa", "conn", "interpolation", "messaging"},  # the names of 2017
    {"demo", "bench", "testing"},
    {"cli"},
    {"__main__"},
]
STOREY_OF = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}

TORCH_MAY_BE_USED_IN = ("adapters/", "bench/", "data/codecs/", "data/kernels.py", "demo/")
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

FILES = sorted(PACKAGE.rglob("*.py"))


def imported_modules(path):
    """Every module a file imports, at any depth of its code, but not those only for type checks."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
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


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_room_imports_only_what_is_below_it(path):
    room = room_of(path)
    if room == "__init__":
        assert not [m for m in imported_modules(path) if m.startswith("dpwa.")]
        return
    for module in imported_modules(path):
        parts = module.split(".")
        if parts[0] != "dpwa" or len(parts) == 1 or parts[1] == "__version__":
            continue
        other = parts[1]
        assert other == room or STOREY_OF[other] < STOREY_OF[room], f"{room} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_torch_lives_only_in_its_rooms(path):
    if not relative(path).startswith(TORCH_MAY_BE_USED_IN):
        assert not [m for m in imported_modules(path) if m.split(".")[0] == "torch"]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_nothing_is_ever_pickled(path):
    assert not PICKLES & set(imported_modules(path))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_policy_and_wire_are_pure(path):
    if not relative(path).startswith(PURE_ROOMS):
        return
    modules = set(imported_modules(path))
    assert not IMPURE_MODULES & {module.split(".")[0] for module in modules}
    assert not {m for m in modules if m.startswith("random.")}, "import random, and pass a Random"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random":
            assert node.attr == "Random", "randomness is an argument"
        assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "open")


def test_importing_dpwa_is_light_and_has_no_side_effects():
    code = (
        "import sys, threading, dpwa\n"
        "heavy = {'torch', 'numpy', 'zmq', 'pydantic', 'matplotlib', 'sklearn'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert threading.active_count() == 1\n"
        "from dpwa import DpwaConnection\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
