"""The wheel and the sdist: what is in them, and that both work where there is no checkout."""

import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import dpwa

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("build") is None, reason="build is not installed"),
]

ROOT = Path(__file__).parent.parent
SOURCES = ("dpwa", "README.md", "LICENSE", "pyproject.toml", "setup.cfg")
FILES = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "dpwa").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
OUTSIDE = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def run(*command, cwd):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=OUTSIDE,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The sdist, the wheel that is made of it, and the one that is made of the sources."""
    folder = tmp_path_factory.mktemp("packages")
    sources, both, wheel = folder / "sources", folder / "both", folder / "wheel"
    for name in SOURCES:
        place = sources / name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            sources.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, place)
    build = (sys.executable, "-m", "build", "--no-isolation")
    run(*build, "--outdir", both, sources, cwd=folder)  # the sdist, and the wheel of that
    run(*build, "--wheel", "--outdir", wheel, sources, cwd=folder)
    return {
        "sdist": next(both.glob("*.tar.gz")),
        "wheel of the sdist": next(both.glob("*.whl")),
        "wheel": next(wheel.glob("*.whl")),
    }


def names_in(path):
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist())
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.parametrize("kind", ["sdist", "wheel of the sdist", "wheel"])
def test_all_of_the_package_is_in_it(kind, packages):
    names = names_in(packages[kind])
    assert "dpwa/py.typed" in FILES
    assert names >= FILES
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
    assert [name for name in names if name.endswith("LICENSE")]


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_it_works_without_the_checkout(kind, packages, tmp_path):
    """Installed where nothing is downloaded: what dpwa needs comes from this environment."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python, command = home / "bin" / "python", home / "bin" / "dpwa"
    (own,) = home.glob("lib/python*/site-packages")
    here = [p for p in [*site.getsitepackages(), *sys.path] if p.endswith("-packages")]
    (own / "base.pth").write_text("\n".join(dict.fromkeys(here)))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed")
    run(*pip, *offline, packages[kind], cwd=tmp_path)

    where = run(python, "-c", "import dpwa; print(dpwa.__file__)", cwd=tmp_path)
    assert where.startswith(str(own))
    told = json.loads(run(command, "version", "--json", cwd=tmp_path))
    assert told["dpwa"] == dpwa.__version__
    assert {"demo", "hf", "all"} <= set(_extras_of(python, tmp_path))
    assert "images of a few digits" in run(command, "demo", "--help", cwd=tmp_path)
    demo = run(command, "demo", "--nodes", 2, "--steps", 300, "--json", cwd=tmp_path)
    assert len(json.loads(demo)["nodes"]) == 2
    assert (tmp_path / "demo-output").is_dir()


def _extras_of(python, folder):
    code = (
        "from importlib import metadata as m; print(*m.metadata('dpwa').get_all('Provides-Extra'))"
    )
    return run(python, "-c", code, cwd=folder).split()
