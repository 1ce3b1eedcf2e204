"""A home for Spark in which workers on this machine find the installed pyspark, not its copy in a zip.

Spark puts `python/lib/pyspark.zip` of its home in front of all else, and what Python imports from a zip it compiles
each time: 0.6 s for each of the seven processes that a session's first query starts, and for one of each further
query. A home that has no such file leaves them to the package that this interpreter has, compiled long ago.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from headrace.observe import get_logger
from headrace.services.cache import cache_folder

__all__ = ["compiled_home"]

_logger = get_logger(__name__)

_LINKED = ("bin", "sbin", "jars", "conf", "licenses")


@contextlib.contextmanager
def compiled_home() -> Iterator[None]:
    """Let Spark start from such a home; one that somebody chose by SPARK_HOME stays.

    Where none can be made, as in a cache that may only be read, Spark starts from its own: slower, and as well.
    """
    home = None if "SPARK_HOME" in os.environ else _home(cache_folder() / "spark-home")
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _home(folder: Path) -> Path | None:
    """Return the home for the pyspark of this interpreter, made of links; None where there can be none."""
    import pyspark

    package = Path(pyspark.__file__).parent.resolve()
    key = hashlib.sha256(str(package).encode()).hexdigest()[:12]
    home = folder / f"{metadata.version('pyspark')}-{key}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:
            if (package / name).exists():
                with contextlib.suppress(FileExistsError):  # others may do the same
                    (home / name).symlink_to(package / name)
    except OSError as error:
        _logger.info("Spark starts from its own home", reason=str(error))
        return None
    return home
