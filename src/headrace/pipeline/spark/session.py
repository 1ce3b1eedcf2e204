"""Spark sessions: starting one, ending it, and providing any session with data sources and connectors.

The connectors are the jars of Kafka's source and of Avro's functions. `spark_session` starts Spark with them. A session
that other code has started gets them at run time where they lack: a classic one by ADD JAR, one of Spark Connect as
artifacts of the client.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import metadata, resources
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from headrace.config import PipelineSettings
from headrace.errors import BadArgument, FetchFailed, MissingExtra, UnsupportedPlatform
from headrace.observe import get_logger
from headrace.pipeline.spark.endpoints import SECRET_NAMES, Endpoints, is_secret
from headrace.services import Quiet, Watcher, cache_folder, find_java, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = [
    "check_version",
    "compiled_home",
    "end_session",
    "is_connect",
    "is_jvm_gone",
    "is_submitted",
    "provide_avro",
    "provide_interpreter",
    "provide_kafka",
    "refuse_connect",
    "refuse_speculation",
    "register",
    "spark_session",
]

_logger = get_logger(__name__)

_LINKED = ("bin", "sbin", "jars", "conf", "licenses")


@contextlib.contextmanager
def compiled_home() -> Iterator[None]:
    """Start Spark from a home in which workers find the installed pyspark, unless SPARK_HOME names another home.

    Spark puts `python/lib/pyspark.zip` of its home first in the path, and Python compiles modules of a zip on every
    import: 0.6 s for each of the seven processes of a session's first query, and for one of each further query. In a
    home without that file they use the installed, compiled package. If the home can't be made, as in a read-only
    cache, Spark starts from its own, which is slower.
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
    """Return the home for this interpreter's pyspark, made of links; None if it can't be made."""
    import pyspark

    package = Path(pyspark.__file__).parent.resolve()
    key = hashlib.sha256(str(package).encode()).hexdigest()[:12]
    home = folder / f"{metadata.version('pyspark')}-{key}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:
            if (package / name).exists():
                with contextlib.suppress(FileExistsError):  # another process may make the same link
                    (home / name).symlink_to(package / name)
    except OSError as error:
        _logger.info("Spark starts from its own home", reason=str(error))
        return None
    return home


_lock = threading.Lock()

# Spark refuses a source that takes filters unless this is on, and it is off by default.
_PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
_OLDEST = (4, 2)


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a Python data source with the session, if it is not registered yet, and enable filter push-down.

    Sources belong to a session, so a property of the session notes which ones are registered. The JVM looks for a
    source in the session that is active in the calling thread. Spark sets that only in the thread that made the
    session, and has no public way to set it elsewhere. A server of Spark Connect does so itself. Raises
    UnsupportedPlatform if the session's Spark is too old.
    """
    provide_interpreter(spark)
    if not is_connect(spark):
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)  # noqa: SLF001
    known = f"headrace.source.{source.name()}"
    with _lock:
        if spark.conf.get(known, None) is None:
            check_version(spark.version)
            spark.conf.set(_PUSH_DOWN, "true")
            spark.dataSource.register(source)
            spark.conf.set(known, "registered")


def provide_interpreter(spark: SparkSession) -> None:
    """Let the workers of Spark on this machine run in the environment of this program, which has what tasks import.

    Spark's own default is the `python3` of the PATH. A notebook, or a program whose virtual environment is not
    activated, has another one there. Whoever has named an interpreter, or has workers elsewhere, keeps what they have.
    Raises UnsupportedPlatform for a server of Spark Connect that this program started with another environment.
    """
    if is_connect(spark):
        _check_own_server()
        return
    if _INTERPRETER in os.environ:
        return
    context = spark.sparkContext
    if context.master.startswith("local") and not context.getConf().contains("spark.pyspark.python"):
        context.pythonExec = sys.executable


def _check_own_server() -> None:
    """Raise UnsupportedPlatform if the server of Spark Connect in this program has workers that can't import Headrace.

    Such a server reads the name of the interpreter from the environment of its JVM, which never changes.
    """
    from pyspark import SparkContext

    jvm = SparkContext._jvm  # noqa: SLF001 - no public way to ask
    if _OWN_SERVER not in os.environ or jvm is None:
        return
    named = (jvm.System.getenv(name) for name in (_INTERPRETER, "PYSPARK_DRIVER_PYTHON"))
    python = next(filter(None, named), "python3")
    found = shutil.which(python, path=jvm.System.getenv("PATH"))
    if found is None or not _has_headrace(found):
        need = "a Python environment with headrace for the workers of Spark Connect's local server"
        step = f"restart this program with {_INTERPRETER}={sys.executable} in the environment"
        raise UnsupportedPlatform(need, found or f"no {python}", step)


@functools.cache
def _has_headrace(python: str) -> bool:
    command = [python, "-c", "import headrace.pipeline.spark.process"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def check_version(version: str) -> None:
    """Raise UnsupportedPlatform for a Spark whose Python sources lack what ours need.

    Sources get filters since Spark 4.1. Since 4.2 a stream's source learns how much to read and where to end.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        need = "Spark 4.2, whose Python sources get filters and limits,"
        raise UnsupportedPlatform(need, f"Spark {version}", "connect to a newer one, or start one with spark_session()")


_LOOPBACK = "127.0.0.1"
_INTERPRETER = "PYSPARK_PYTHON"
_REMOTE = ("SPARK_REMOTE", "SPARK_API_MODE")
_OWN_SERVER = "SPARK_LOCAL_REMOTE"  # pyspark sets it in a program that has started a server of Spark Connect
_started: list[subprocess.Popen[bytes]] = []  # the JVM of this process, if we started it

# The jobs depend on these: they win over submitted properties.
_REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",  # two attempts of a task would write at the same time
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.noDataProgressEventInterval": "2000",
    "spark.redaction.regex": SECRET_NAMES,
    "spark.sql.redaction.options.regex": SECRET_NAMES,
}
# Defaults for the jobs; submitted properties win over them.
_PREFERRED = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "headrace.pipeline.spark.worker_daemon",
    "spark.python.authenticate.socketTimeout": "60s",  # a worker on a busy machine takes its time
}
# Set for the driver's process by spark-submit's script, and by the launcher of a driver inside a YARN cluster.
_SUBMITTED = ("SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT")


def is_submitted(environ: Mapping[str, str]) -> bool:
    """Return True if spark-submit, or a cluster that it submitted to, started this process."""
    return any(name in environ for name in _SUBMITTED)


def spark_session(
    settings: PipelineSettings | None = None,
    *,
    name: str = "headrace",
    watcher: Watcher | None = None,
    is_brief: bool = False,
    endpoints: Endpoints | None = None,
) -> SparkSession:
    """Return the session of this process, started if there is none. `is_brief` is for short work, as in tests.

    Inside spark-submit the submitted properties are kept, except those that the jobs depend on (time zone, no
    speculation, Arrow, …); `pipeline.spark` wins over both. Jars are fetched once, checked by SHA-256 and cached.
    If `endpoints` are on the embedded tier and the jars can't be fetched, the session starts without them. It is a
    session with its own JVM, also where the environment names a server of Spark Connect.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra("pyspark", "pipeline") from error
    settings = settings or PipelineSettings()
    if (active := SparkSession.getActiveSession()) is not None:
        return active
    # py4j logs every call with its arguments, and some of those are secret.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    was_submitted = is_submitted(os.environ)
    if was_submitted:
        base = {**_not_submitted(_PREFERRED), **_REQUIRED}
    else:
        base = {**_PREFERRED, **_REQUIRED, **_local(settings, _jars(endpoints, watcher), is_brief=is_brief)}
    config = {**base, **settings.spark}
    with _jvm_ends_with_failure(), _without_remote():
        if not was_submitted:
            find_java()
            with compiled_home() if settings.master.startswith("local") else nullcontext():
                _launch(config)
        builder = SparkSession.builder.appName(name)
        for key, value in config.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def end_session(spark: SparkSession) -> None:
    """Stop a session and the JVM that `spark_session` started for it. Another session can be started afterwards."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    try:
        spark.stop()
    except (Py4JError, ConnectionError) as error:
        if not is_jvm_gone(error):
            raise
        SparkContext._active_spark_context = SparkSession._instantiatedSession = None  # noqa: SLF001 - as a stop does
    if not _started:
        return
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None  # noqa: SLF001
    if gateway is not None:
        gateway.shutdown()
    _kill_started()


def is_jvm_gone(error: BaseException) -> bool:
    """Return True if an error comes from a JVM that was killed, or ran out of memory.

    A call that was on its way then fails with an error that names the method only, and later ones are refused.
    """
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    return isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError) and any(map(_has_ended, _started))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return True if a process has ended; its connections may break a moment before."""
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def _without_remote() -> Iterator[None]:
    """Hide the server of Spark Connect that the environment names: Spark refuses to start beside such a name."""
    hidden = {name: os.environ.pop(name) for name in _REMOTE if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


@contextmanager
def _jvm_ends_with_failure() -> Iterator[None]:
    """Kill the JVM if its start fails or is interrupted: pyspark forgets it, and it would run forever.

    A JVM that ran before belongs to other sessions of this process and stays.
    """
    from pyspark import java_gateway

    ran_before = len(_started)

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - as Popen takes them
        with _interrupts_later():  # if one came within, the process would have started and nobody would know it
            _started.append(subprocess.Popen(*arguments, **options))
        return _started[-1]

    real, java_gateway.Popen = java_gateway.Popen, start
    try:
        yield
    except BaseException:
        _kill_started(since=ran_before)
        raise
    finally:
        java_gateway.Popen = real


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let an interrupt that comes within the block count at its end."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for each in came:
            before(*each)


def _kill_started(*, since: int = 0) -> None:
    while len(_started) > since:
        process = _started.pop()
        process.kill()
        process.wait()


def _launch(config: Mapping[str, str]) -> None:
    """Start the JVM without secret properties, because everyone can see its command line; they are set later."""
    from pyspark import SparkConf, SparkContext

    public = [(key, value) for key, value in config.items() if not is_secret(key)]
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(public))  # noqa: SLF001 - no public way


def _not_submitted(preferred: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that neither the command line nor the cluster's defaults set."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - only the JVM, which runs already, knows what was submitted
    submitted = SparkConf()
    return {key: value for key, value in preferred.items() if not submitted.contains(key)}


def _jars(endpoints: Endpoints | None, watcher: Watcher | None) -> list[Path]:
    """Return the jars of Kafka's connector and Avro's reader. The embedded tier needs them only for typed columns."""
    try:
        return spark_jars(watcher or Quiet())
    except FetchFailed as error:
        if endpoints is None or not endpoints.log.startswith("embedded:"):
            raise
        _logger.warning("spark starts without its jars for Kafka and Avro", reason=str(error))
        return []


def _local(settings: PipelineSettings, jars: Sequence[Path], *, is_brief: bool) -> dict[str, str]:
    """Return the properties of a session that is not started by spark-submit."""
    os.environ.setdefault(_INTERPRETER, sys.executable)  # Spark ignores the property when it plans sources
    config = {
        "spark.master": settings.master,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": _java_options(is_brief=is_brief),
        "spark.ui.enabled": str(settings.ui).lower(),
    }
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        config |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    return config


def _java_options(*, is_brief: bool) -> str:
    """Return options of the JVM: little logging, and for brief work no second compiler, which would cost more time."""
    quiet = Path(str(resources.files(__package__).joinpath("log4j2.properties"))).as_uri()  # a path may have spaces
    return f"-Dlog4j2.configurationFile={quiet} -XX:+UseParallelGC -XX:TieredStopAtLevel={1 if is_brief else 4}"


_AVRO = "org.apache.spark.sql.avro.AvroDataToCatalyst"
_KAFKA = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_SENT = "headrace.connectors"
_REDACTED = "spark.sql.redaction.options.regex"

_jars_lock = threading.Lock()


def is_connect(spark: SparkSession) -> bool:
    """Return True if the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def refuse_connect(spark: SparkSession, what: str, instead: str) -> None:
    """Raise BadArgument if the session is one of Spark Connect."""
    if is_connect(spark):
        raise BadArgument("spark", "a session of Spark Connect", f"{what}; {instead}")


def refuse_speculation(spark: SparkSession, what: str) -> None:
    """Raise BadArgument if Spark may run two attempts of a task at once, both of which would write."""
    if spark.conf.get("spark.speculation", "false") == "true":
        rule = f"{what} needs a session without it: two attempts of a task would write at once; start another session"
        raise BadArgument("spark.speculation", "true", rule)


def provide_avro(spark: SparkSession) -> None:
    """Make sure that the session can read and write Avro. Raises FetchFailed if a jar is missing and can't be had."""
    if is_connect(spark):
        _send_jars(spark, "avro", lambda: spark.sql("SELECT to_avro(1)").schema)
    else:
        _add_jars(spark, _AVRO)


def provide_kafka(spark: SparkSession) -> None:
    """Make sure that the session can read Kafka. Raises FetchFailed if a jar is missing and can't be had.

    The options of the source hold secrets. Spark hides those that a property of the session names, and by default it
    names too few.
    """
    if "jaas" not in (hidden := spark.conf.get(_REDACTED, "")):
        spark.conf.set(_REDACTED, f"{SECRET_NAMES}|{hidden}" if hidden else SECRET_NAMES)
    if is_connect(spark):
        where = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "none"}  # the schema needs no connection
        _send_jars(spark, "kafka", lambda: spark.read.format("kafka").options(**where).load().schema)
    else:
        _add_jars(spark, _KAFKA)


def _add_jars(spark: SparkSession, name: str) -> None:
    """Add the jars unless a class of theirs is known in the calling thread.

    Spark keeps added jars for the application, and looks for classes with the loader of the thread that asks. ADD JAR
    sets the loader of its own thread only, so another thread adds the jars again, which is cheap.
    """
    with _jars_lock:
        if not spark._jvm.org.apache.spark.util.Utils.classIsLoadable(name):  # noqa: SLF001 - no public way to ask
            for jar in spark_jars(Quiet()):
                spark.sql(f"ADD JAR {jar.as_uri()}")


def _send_jars(spark: SparkSession, name: str, probe: Callable[[], object]) -> None:
    """Send the jars to the server unless it can analyse what needs them; a property of the session notes it."""
    from pyspark.errors import AnalysisException

    known = f"{_SENT}.{name}"
    with _jars_lock:
        if spark.conf.get(known, None) is not None:
            return
        try:
            probe()
        except AnalysisException:
            spark.addArtifacts(*(str(jar) for jar in spark_jars(Quiet())))
        spark.conf.set(known, "provided")
