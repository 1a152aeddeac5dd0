"""``python -m serving.compile``: compiles the router's hot modules (``compiled.MODULES``) for this Python, with mypyc.

``make compiled`` does it, and so do ``make up`` and ``make install``. It takes a minute, and next to nothing where it was done already. Without a C compiler, Python's
headers or mypy it says so in one line and ends well: the router then runs as plain Python.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

from serving import compiled

#: mypyc's names for where it puts C code; the build runs in a folder of its own that is thrown away.
_SETUP = """
import sys
from setuptools import Distribution
from mypyc.build import mypycify
modules = mypycify(sys.argv[1:], opt_level="2", debug_level="0", multi_file=True, separate=False)
distribution = Distribution({"name": "exaserve-compiled", "ext_modules": modules, "packages": []})
command = distribution.get_command_obj("build_ext")
command.inplace = True
command.parallel = 2
command.ensure_finalized()
command.run()
"""
#: Not the project's own configuration: only what the compiler's reading of the types depends on.
_MYPY = "[mypy]\nplugins = pydantic.mypy\nignore_missing_imports = True\n"
MINUTES = 10


class CannotCompile(Exception):
    """There is nothing to compile with, or it failed; the text says what."""


def build() -> None:
    """Compile them. Raises CannotCompile, OSError."""
    place = compiled.folder()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".exaserve-compiling-") as folder:
        work, out = Path(folder), Path(folder) / "out"
        sources = _copy(work)
        _compile(work)
        fits = {"version": compiled.version(), "library": _gather(work, out), "sources": sources}
        (out / compiled.MANIFEST).write_text(json.dumps(fits, indent=1) + "\n")
        if place.exists():  # who runs what is in there has it open
            place.rename(work / "before")
        out.rename(place)


def _tools() -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise CannotCompile(f"there is no C compiler ({compiler})")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise CannotCompile(f"Python's headers are not there ({headers}; on Debian: python3-dev)")
    for name in ("mypyc", "setuptools", "librt"):
        if find_spec(name) is None:
            raise CannotCompile(f"{name} is not installed (mypy brings it: pip install 'exaserve[dev]')")


def _copy(work: Path) -> dict[str, str]:
    """The modules and all that they import of ours, away from the project's own configuration of mypy and setuptools.

    Returns file -> hash: of what is compiled, whatever becomes of the sources meanwhile.
    """
    hashes: dict[str, str] = {}
    wanted = list(compiled.MODULES)
    seen = set(wanted)
    while wanted:
        file = _source(wanted.pop())
        if file is None or file in hashes:
            continue
        data = (compiled.PACKAGES / file).read_bytes()
        hashes[file] = compiled.hash_of(data)
        target = work / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        new = _imports(data) - seen
        seen |= new
        wanted += new
    (work / "mypy.ini").write_text(_MYPY)
    (work / "setup.py").write_text(_SETUP)
    return hashes


def _source(module: str) -> str | None:
    """The file of a module of ours, below the packages' folder; None for all others, and for names in a module."""
    path = module.replace(".", "/")
    return next((f for f in (f"{path}.py", f"{path}/__init__.py") if (compiled.PACKAGES / f).is_file()), None)


def _imports(source: bytes) -> set[str]:
    """What may be a module of ours among the names that a source imports, wherever it does, and their packages.

    Not of other top-level folders: of the metric catalogue, the only one, no type and no constant is compiled in.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    ours = {n for n in names if n.startswith("serving.")}
    return ours | {n.rsplit(".", k)[0] for n in ours for k in range(1, n.count(".") + 1)}


def _compile(work: Path) -> None:
    files = [f"{name.replace('.', '/')}.py" for name in compiled.MODULES]
    try:
        done = subprocess.run(
            [sys.executable, "setup.py", *files], cwd=work, capture_output=True, text=True, timeout=60 * MINUTES,
            env=os.environ | {"PYTHONPATH": str(work), "MYPY_CACHE_DIR": str(work / "cache")},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CannotCompile(f"it took longer than {MINUTES} minutes") from None
    if done.returncode:
        lines = [x for x in (done.stdout + done.stderr).splitlines() if "error" in x.lower()]
        raise CannotCompile((lines or [f"exit status {done.returncode}"])[0])


def _gather(work: Path, out: Path) -> str:
    """Every library into one folder, named by its module; returns the name of the one they share."""
    out.mkdir()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    shared = [f for f in work.glob(f"*{suffix}") if f.name.removesuffix(suffix).endswith("__mypyc")]
    if len(shared) != 1:
        raise CannotCompile(f"mypyc made {len(shared)} shared libraries, not one")
    shared[0].rename(out / shared[0].name)
    for name in compiled.MODULES:
        (work / f"{name.replace('.', '/')}{suffix}").rename(out / f"{name}{suffix}")
    return shared[0].name.removesuffix(suffix)


def main() -> None:
    if compiled.library():
        return
    try:
        _tools()
        print(
            "compiling the router's hot modules (a minute; as plain Python they take twice the CPU)",
            flush=True,
        )
        build()
    except (CannotCompile, OSError, SyntaxError) as error:
        print(f"the router is not compiled, and runs as plain Python: {error}", flush=True)


if __name__ == "__main__":
    main()
