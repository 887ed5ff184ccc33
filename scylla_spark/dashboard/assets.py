"""Styles and scripts: read once, compressed once, and named by what they hold, so that browsers keep them for ever."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_DIGEST_CHARS: Final = 12


class Asset(NamedTuple):
    """A file that browsers load: its digest, its media type, and its bytes plain and compressed."""

    digest: str
    media_type: str
    plain: bytes
    packed: bytes


class Assets:
    """All files of the folder `static` that browsers load."""

    def __init__(self) -> None:
        self._found = _found()

    def path(self, name: str) -> str:
        """Returns the path of a file. It changes with the content of the file.

        Raises:
            KeyError: there is no such file.
        """
        return f"/ui/static/{self._found[name].digest}/{name}"

    def answer(self, request: Request) -> Response:
        """The file that a request asks for; 404 where it is another now."""
        digest, _, name = request.path_params["path"].partition("/")
        asset = self._found.get(name)
        if asset is None or asset.digest != digest:
            return Response("There is no such file.", 404, media_type="text/plain")
        headers = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=asset.media_type)
        return Response(asset.plain, headers=headers, media_type=asset.media_type)


@cache
def _found() -> dict[str, Asset]:
    paths = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in _TYPES]
    return {path.relative_to(FOLDER).as_posix(): _asset(path) for path in paths}


def _asset(path: Path) -> Asset:
    plain = path.read_bytes()
    digest = hashlib.sha256(plain).hexdigest()[:_DIGEST_CHARS]
    return Asset(digest, _TYPES[path.suffix], plain, gzip.compress(plain, mtime=0))
