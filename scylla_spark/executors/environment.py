"""Which environment variables handlers get: an explicit list, because a dispatcher's own hold the password of its broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

ALLOWED: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TMPDIR", "TEMP", "TMP",
    "HOSTNAME", "TERM", "XDG_*_HOME", "XDG_RUNTIME_DIR",
    "PYTHONPATH", "PYTHONHOME", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONNOUSERSITE", "PYTHONUSERBASE",
    "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONFAULTHANDLER", "PYTHONTZPATH",
    "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "HADOOP_HOME", "HADOOP_CONF_DIR",
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_*", "CUDA_VISIBLE_DEVICES",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
)  # fmt: skip
NEVER: Final = (
    "SCYLLASPARK_*",  # settings of ours, secrets among them
    "PYTHONHASHSEED",  # hashes are to be random also where the launcher of a Spark job fixes them
)


def handler_environment(own: Mapping[str, str], passed: Sequence[str] = ()) -> dict[str, str]:
    """The environment of processes that run handlers.

    Args:
        own: that of this process.
        passed: what the deployment adds to `ALLOWED`: names, or patterns such as "AWS_*". What `NEVER` names is kept
            back all the same.
    """
    return {
        name: value
        for name, value in own.items()
        if _matches(name, (*ALLOWED, *passed)) and not _matches(name.upper(), NEVER)
    }


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
