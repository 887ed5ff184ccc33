"""Places of tables: each has one canonical form, so that two texts for one table are found to be equal."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from scylla_spark.errors import ArgumentError

_URI: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)|(?P<file>[Ff][Ii][Ll][Ee]):(?P<path>/.*)")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_SAME: Final = {"s3a": "s3", "abfs": "abfss"}  # other names of a scheme → its canonical name
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTAINER: Final = re.compile(
    r"(?P<container>[a-z0-9$-]+)@(?P<account>[a-z0-9-]+)\.(?:dfs|blob)\.(?P<cloud>core\.windows\.net|fabric\.microsoft\.com)"
)
_HOSTS: Final = {
    "s3": "s3://BUCKET/PATH",
    "gs": "gs://BUCKET/PATH",
    "abfss": "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
}
_SUPPORTED: Final = "an absolute path, file:///PATH, " + ", ".join(_HOSTS.values())
_PLAIN: Final = "/-._~!$&'()*+,;=:@"  # characters of a path that stand for themselves in every URI


def is_place(table: str) -> bool:
    """Checks for a place of a table: an absolute path or a URI. Any other text is a name, or a relative path.

    Args:
        table: as a trigger has it.
    """
    return table.startswith("/") or "://" in table or scheme_of(table) is not None


def scheme_of(text: str) -> str | None:
    """The scheme of a URI, in small letters, also if the URI has one slash only (`dbfs:/lake`). None: the text is a path or a name."""
    found = _SCHEME.match(text)
    return None if found is None else found[1].lower()


def table_place(text: str) -> str:
    """The canonical form of a place.

    A folder of this machine is a path. A URI has its scheme and host in small letters (bucket names as they are), `s3` for
    `s3a`, `abfss` for `abfs`, and percent codes only where they are needed. Neither has `.`, `..`, doubled slashes or a slash at its end.

    Args:
        text: a path, or a URI.

    Raises:
        ArgumentError: the scheme is not supported, or the text is not a valid URI.
    """
    found = _URI.fullmatch(text)
    if "\0" in unquote(text):
        raise ArgumentError(f"The place {text!r} has a zero byte in it, which no path can have.", hint="Leave it out.")
    scheme = scheme_of(text)
    if found is None and scheme is None and "://" not in text:
        return _tidy(text)
    if scheme is not None and _SAME.get(scheme, scheme) not in (*_HOSTS, "file"):
        raise ArgumentError(f"Tables in {scheme!r} are not supported: {text!r}.", hint=f"Give {_SUPPORTED}.")
    if found is None or not text.isprintable() or "?" in text or "#" in text:
        raise ArgumentError(
            f"{text!r} is not the URI of a table.", hint=f"Give {_SUPPORTED}, without a query or fragment."
        )
    scheme = (found["file"] or found["scheme"]).lower()
    scheme = _SAME.get(scheme, scheme)
    if scheme == "file":
        return _local(text, found)
    host, _, path = found["rest"].partition("/")
    path = _tidy("/" + unquote(path))
    return f"{scheme}://{_host(scheme, host, text)}{quote(path, safe=_PLAIN) if path != '/' else ''}"


def lies_under(place: str, folder: str) -> bool:
    """Checks if a place is a folder or is inside it. Both are canonical."""
    return place == folder or place.startswith(f"{folder.rstrip('/')}/")


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """The tables that triggers may watch.

    Attributes:
        names: name → place, as the setting `plan.tables` has it.
        own: canonical places of the deployment's own tables. A trigger on one would fire by what its own runs write, for ever.
        allowed: canonical places under which tables must be that a trigger names by their place; empty: anywhere.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def of(self, table: str) -> str | None:
        """The canonical place of a table. None: `plan.tables` does not have the name.

        Args:
            table: as a trigger has it.

        Raises:
            ArgumentError: the place is not supported, not allowed, or one of the deployment's own.
        """
        named = self.names.get(table)
        if named is None and not is_place(table):
            return None
        place = table_place(named if named is not None else table)
        self.check(place, table)
        return place

    def check(self, place: str, table: str) -> None:
        """Refuses a place that triggers may not watch.

        Args:
            place: canonical.
            table: how the trigger names it.

        Raises:
            ArgumentError: it is one of the deployment's own, or not allowed.
        """
        if any(lies_under(place, one) for one in self.own):
            raise ArgumentError(
                f"The table {table!r} is one of the deployment's own, in which each run of its schedule leaves rows.",
                hint="Wait for the ends of tasks by `after` or `batch`.",
            )
        if self.allowed and table not in self.names and not any(lies_under(place, one) for one in self.allowed):
            raise ArgumentError(
                f"The table {table!r} is not in a place that triggers may watch.",
                hint="The setting plan.allowed_places lists these places. Use one of them, or a name of plan.tables.",
            )


def _tidy(path: str) -> str:
    """A path without `.`, `..`, doubled slashes or a slash at its end."""
    return posixpath.normpath("/" + path.lstrip("/") if path.startswith("/") else path)


def _local(text: str, found: re.Match[str]) -> str:
    if found["path"] is not None:
        return _tidy(unquote(found["path"]))
    host, slash, path = found["rest"].partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise ArgumentError(f"{text!r} is not a folder of this machine.", hint="Give file:///PATH, or the path alone.")
    return _tidy(unquote("/" + path))


def _host(scheme: str, host: str, text: str) -> str:
    if scheme != "abfss" and _BUCKET.fullmatch(host):
        return host
    if scheme == "abfss" and (parts := _CONTAINER.fullmatch(host.lower())):
        return f"{parts['container']}@{parts['account']}.dfs.{parts['cloud']}"
    raise ArgumentError(f"{text!r} does not name a place in a store.", hint=f"Write it as {_HOSTS[scheme]}.")
