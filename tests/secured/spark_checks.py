"""Run as a process: ways into a secured topic through Spark, with their plans and errors; then a headrace command.

Settings come as to any command (HEADRACE_CONFIG); what to check comes as JSON on the input, the answers go to a file.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import HeadraceSettings
from headrace.model import TopicPartition
from headrace.pipeline import Endpoints, Selection, append_frame, journal_frame, spark_session
from headrace.pipeline.logs.frames import log_stream, log_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> None:
    """Answer, then run the command in the same session."""
    told = json.load(sys.stdin)
    spark = spark_session(HeadraceSettings.load().pipeline, is_brief=True)
    at = TopicPartition(told["topic"], 0)
    answers: dict[str, Any] = {}
    with ThreadPoolExecutor() as threads:  # a client that is refused waits and asks again: the others need not wait
        asked = {
            name: threads.submit(answer_of, spark, at, told["records"], case) for name, case in told["cases"].items()
        }
        answers |= {name: answer.result() for name, answer in asked.items()}
    endpoints = Endpoints.of()
    stream = log_stream(spark, endpoints, {at: 0}, max_records=1)
    answers["plans"] = plan_of(stream) + plan_of(journal_frame(spark, endpoints, Selection(("none",))))
    answers["conf"] = spark.sparkContext._jsc.sc().conf().toDebugString()
    Path(told["answers"]).write_text(json.dumps(answers))
    sys.argv = ["headrace", *told["command"]]
    runpy.run_module("headrace.cli", run_name="__main__")


def answer_of(spark: SparkSession, at: TopicPartition, records: int, case: dict[str, Any]) -> dict[str, Any]:
    """Read and write with the settings of a case."""
    settings = HeadraceSettings.model_validate(case)
    endpoints = Endpoints.of(settings=settings)
    frame = log_table(spark, endpoints, {at: 0}, {at: records})
    answer: dict[str, Any] = {"plan": plan_of(frame), "repr": repr(endpoints), "settings": repr(settings)}
    try:
        answer["read"] = frame.count()  # Kafka's Java client in an executor
        rows = spark.createDataFrame([("a", "b")], "key string, value string")
        answer["written"] = append_frame(rows, endpoints, at.topic).records  # librdkafka in a worker
    except Exception as error:
        answer["error"] = f"{type(error).__name__} {error} {error!r}"
    return answer


def plan_of(frame: Any) -> str:
    """Return what `explain` shows, in every detail."""
    plan = frame._jdf.queryExecution()
    texts = [plan.logical().toString()]
    with contextlib.suppress(Exception):  # a stream has no plan of its own
        texts += [plan.toString(), plan.simpleString(), plan.stringWithStats()]
    return "\n".join(texts)


if __name__ == "__main__":
    main()
