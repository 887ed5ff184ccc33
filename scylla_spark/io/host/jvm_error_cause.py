"""Why the JVM failed: because of a value that it was given, or because of the world around it (storage, brokers, other writers)."""

from __future__ import annotations

from typing import Any, Final

_MOST_CAUSES: Final = 20
_WORLD: Final = (
    "java.io.IOException",
    "java.io.UncheckedIOException",
    "java.lang.IllegalStateException",  # a stopped SparkContext
    "java.lang.InterruptedException",
    "java.lang.VirtualMachineError",  # out of memory
    "java.util.concurrent.TimeoutException",
    "org.apache.kafka.common.KafkaException",
    "org.apache.spark.sql.delta.DeltaConcurrentModificationException",
)
_VALUE: Final = (
    "java.lang.RuntimeException",
    "org.apache.spark.api.python.PythonException",
    "org.apache.spark.SparkArithmeticException",
)


def value_failed(error: BaseException) -> bool:
    """Returns True if an error of Spark may come from a value in a record, and not from storage, brokers, memory or another writer."""
    names = _classes(error)
    return bool(names & set(_VALUE)) and not names & set(_WORLD)


def _classes(error: BaseException) -> set[str]:
    """Names of the Java classes of an error and of its causes, with those that they extend; empty if it is not the JVM's."""
    thrown: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    names: set[str] = set()
    for _ in range(_MOST_CAUSES):
        if thrown is None:
            break
        kind = thrown.getClass()
        while kind is not None:
            names.add(str(kind.getName()))
            kind = kind.getSuperclass()
        thrown = thrown.getCause()
    return names
