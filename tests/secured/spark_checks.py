"""Run as a process: reads and writes a secured topic through Spark in several ways, and shows plans and errors."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from headrace.config import HeadraceSettings, PipelineSettings
from headrace.model import TopicPartition
from headrace.pipeline import Places, Selection, append_frame, journal_frame, spark_session
from headrace.pipeline.logs.log_frames import log_stream, log_table


def main() -> None:
    """Take cases from the input as JSON, answer as JSON."""
    told = json.load(sys.stdin)
    spark = spark_session(PipelineSettings(master="local[2]", driver_memory="512m"), is_brief=True)
    at = TopicPartition(told["topic"], 0)
    answers: dict[str, Any] = {}
    for name, case in told["cases"].items():
        places = Places.of(settings=HeadraceSettings.model_validate(case))
        frame = log_table(spark, places, {at: 0}, {at: told["records"]})
        answers[name] = {"plan": plan_of(frame), "repr": repr(places), "settings": repr(HeadraceSettings(**case))}
        try:
            answers[name]["read"] = frame.count()  # Kafka's Java client in an executor
            rows = spark.createDataFrame([("a", name)], "key string, value string")
            answers[name]["written"] = append_frame(rows, places, told["topic"]).records  # librdkafka in a worker
        except Exception as error:
            answers[name]["error"] = f"{type(error).__name__} {error} {error!r}"
    stream = log_stream(spark, places, {at: 0}, max_records=1)
    answers["plans"] = plan_of(stream) + plan_of(journal_frame(spark, places, Selection(("none",))))
    answers["conf"] = spark.sparkContext._jsc.sc().conf().toDebugString()
    print(json.dumps(answers))
    spark.stop()


def plan_of(frame: Any) -> str:
    """Return what `explain` shows, in every detail."""
    plan = frame._jdf.queryExecution()
    texts = [plan.logical().toString()]
    with contextlib.suppress(Exception):  # a stream has no plan of its own
        texts += [plan.toString(), plan.simpleString(), plan.stringWithStats()]
    return "\n".join(texts)


if __name__ == "__main__":
    main()
