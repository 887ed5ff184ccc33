"""What a Spark session needs to reach tables in S3: region, endpoint and credentials come from the variables of AWS, as with delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SCHEMES: Final = ("s3://", "s3a://")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")


def is_s3(path: str) -> bool:
    """Returns True if tables at a path or URI lie in S3, or in a store that speaks its protocol."""
    return path.startswith(_SCHEMES)


def s3_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings of Spark by which `s3://` and `s3a://` are the same store that delta-rs reaches.

    Credentials are not among them: Hadoop looks for them where the SDK of AWS does, in the environment, too.

    Args:
        environ: variables of the environment, with AWS's names.
    """
    options = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    if endpoint := _first(environ, _ENDPOINTS):
        options["spark.hadoop.fs.s3a.endpoint"] = endpoint
        options["spark.hadoop.fs.s3a.path.style.access"] = (
            "true"  # buckets as paths, as delta-rs asks other stores than AWS
        )
        options["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    if region := _first(environ, _REGIONS):
        options["spark.hadoop.fs.s3a.endpoint.region"] = region
    return options


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
