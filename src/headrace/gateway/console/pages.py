"""The files of the console's page: read once, compressed once, and served with a policy that lets in nothing else."""

from __future__ import annotations

import gzip
import hashlib
import html
from dataclasses import dataclass
from importlib.resources import files

from starlette.responses import Response

from headrace.errors import NotFound
from headrace.gateway.requests import GatewayRequest

__all__ = ["PAGE_POLICY", "ConsolePages"]

_FOLDER = "assets"
_INDEX = "index.html"
_ROOT = b"{{root}}"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Scripts and styles are files of this server only, and text can't become code: a payload may hold anything.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": PAGE_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "vary": "accept-encoding",
}


@dataclass(frozen=True, slots=True)
class _Page:
    """A file as it is sent: plain, compressed, and its ETag."""

    media_type: str
    plain: bytes
    compressed: bytes
    etag: str


class ConsolePages:
    """The page and its files. Only files that the package has are served, by their plain names."""

    def __init__(self) -> None:
        found = {each.name: each.read_bytes() for each in (files(__package__) / _FOLDER).iterdir() if each.is_file()}
        self._index = found.pop(_INDEX)
        self._assets = {name: _page_of(name, content) for name, content in found.items()}
        self._indexes: dict[str, _Page] = {}

    @property
    def names(self) -> list[str]:
        """The names of the page's files, without the page itself."""
        return sorted(self._assets)

    async def index(self, request: GatewayRequest) -> object:
        """Answer with the page. It has no data, so that everybody may have it, also to enter a token."""
        root = request.root_path
        if root not in self._indexes:
            self._indexes = {root: _page_of(_INDEX, self._index.replace(_ROOT, html.escape(root).encode()))}
        return _response(request, self._indexes[root])

    async def asset(self, request: GatewayRequest) -> object:
        """Answer with a file of the page. Raises NotFound."""
        name = request.path["name"]
        if name not in self._assets:
            raise NotFound(f"file {name[:60]!r} of the console")
        return _response(request, self._assets[name])


def _page_of(name: str, content: bytes) -> _Page:
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return _Page(_TYPES[name.rpartition(".")[2]], content, gzip.compress(content, mtime=0), etag)


def _response(request: GatewayRequest, page: _Page) -> Response:
    headers = {**_HEADERS, "etag": page.etag}
    if request.headers.get("if-none-match") == page.etag:
        return Response(status_code=304, headers=headers)
    accepted = request.headers.get("accept-encoding", "")
    if any(each.strip().lower() == "gzip" for each in accepted.split(",")):
        return Response(page.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=page.media_type)
    return Response(page.plain, headers=headers, media_type=page.media_type)
