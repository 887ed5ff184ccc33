"""What every process shows of its machine: free space in its folders, and when its certificates expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from scylla_spark.io.host.foreign_errors import free_bytes
from scylla_spark.services.metrics_server import PREFIX

_FREE: Final = "Bytes that this process may still write in a folder of its machine"
_EXPIRES: Final = (
    "When the first certificate of a file expires, seconds since the epoch; missing without the package cryptography"
)


class ProcessMetrics(Collector):
    """Looks at folders and files when Prometheus asks.

    Args:
        folders: name → folder in which this process or the embedded broker writes.
        certificates: setting → PEM file.
    """

    def __init__(self, folders: Mapping[str, Path], certificates: Mapping[str, Path]) -> None:
        self._folders, self._certificates = folders, certificates

    def collect(self) -> Iterator[Metric]:
        """The values of now; a folder or a file that cannot be read is left out."""
        free = GaugeMetricFamily(f"{PREFIX}disk_free_bytes", _FREE, labels=["folder"])
        for name, folder in self._folders.items():
            _add(free, name, partial(free_bytes, folder))
        expires = GaugeMetricFamily(f"{PREFIX}certificate_expires_timestamp_seconds", _EXPIRES, labels=["setting"])
        for name, file in self._certificates.items():
            _add(expires, name, partial(_expires_at, file))
        yield from (free, expires)

    def describe(self) -> list[Metric]:
        """Nothing before it is asked."""
        return []


def _add(family: GaugeMetricFamily, label: str, value: Callable[[], float]) -> None:
    try:
        family.add_metric([label], value())
    except (OSError, ValueError, ImportError):
        return


def _expires_at(file: Path) -> float:
    from cryptography import x509

    found = x509.load_pem_x509_certificates(file.read_bytes())
    return min(one.not_valid_after_utc for one in found).timestamp()
