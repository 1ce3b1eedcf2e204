"""Java for the servers, and the options that all of them get."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from headrace.errors import UnsupportedPlatform

__all__ = ["find_java", "private_tmp"]

WANTED = 17
NEXT_STEP = "install a Java 17 runtime (for example the package openjdk-17-jre-headless) or point JAVA_HOME to one"


def find_java(*, newest: int | None = None) -> Path:
    """Find a Java, 17 or newer (up to `newest`), by JAVA_HOME, then on the PATH. Raises UnsupportedPlatform."""
    java = _named_by_home() or _on_path()
    version = _version(java)
    if version < WANTED or (newest is not None and version > newest):
        need = f"Java {WANTED}" if newest == WANTED else f"Java {WANTED} or newer"
        raise UnsupportedPlatform(need, f"Java {version} at {java}", NEXT_STEP)
    return java


def private_tmp(folder: Path) -> str:
    """Return the option that keeps a server's temporary files (unpacked native libraries) in its own folder.

    A server that is killed leaves them behind, and nothing would remove them from the machine's temporary folder.
    """
    own = folder / "tmp"
    own.mkdir(exist_ok=True)
    return f"-Djava.io.tmpdir={own}"


def _named_by_home() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return None
    java = Path(home) / "bin" / "java"
    if not java.exists():
        raise UnsupportedPlatform(f"Java {WANTED}", f"JAVA_HOME={home}, which has no bin/java", NEXT_STEP)
    return java


def _on_path() -> Path:
    if found := shutil.which("java"):
        return Path(found)
    raise UnsupportedPlatform(f"Java {WANTED}", "none on the PATH, and JAVA_HOME is not set", NEXT_STEP)


@lru_cache
def _version(java: Path) -> int:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedPlatform(f"Java {WANTED}", f"{java}, which does not run ({error})", NEXT_STEP) from error
    named = re.search(r'version "(\d+)', done.stderr)
    return int(named[1]) if named else 0
