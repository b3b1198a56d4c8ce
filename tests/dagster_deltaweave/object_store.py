"""An object store of a test's own: the part of S3's protocol that listing and reading need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_PAGE = 1_000


@dataclass
class ObjectStore:
    """Objects by `bucket/key`, each with its content and the time at which it was put.

    With a `refusal`, it answers every request with an error of these words.
    """

    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    listings: int = 0
    reads: int = 0
    refusal: str | None = None

    def put(self, path: str, content: bytes = b"") -> None:
        self.objects[path] = (content, datetime.now(timezone.utc))

    def listing(self, bucket: str, query: dict[str, list[str]]) -> str:
        """The answer to ListObjectsV2."""
        self.listings += 1
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = query.get("continuation-token", [""])[0]
        size = int(query.get("max-keys", [_PAGE])[0])
        entries: dict[str, str] = {}
        for path in sorted(self.objects):
            key = path.removeprefix(f"{bucket}/")
            if not path.startswith(f"{bucket}/{prefix}"):
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter or "\0")
            if found:
                folder = f"{prefix}{head}{delimiter}"
                entries[folder] = (
                    f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                )
                continue
            content, put_at = self.objects[path]
            entries[key] = (
                f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
                f"<LastModified>{put_at:%Y-%m-%dT%H:%M:%S.%f}Z</LastModified></Contents>"
            )
        left = [each for each in entries if each > after]
        page = left[:size]
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if page else ""
        return (
            f"<ListBucketResult><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(len(left) > size).lower()}</IsTruncated>"
            f"{token if len(left) > size else ''}"
            f"{''.join(entries[each] for each in page)}</ListBucketResult>"
        )


@contextmanager
def object_store() -> Iterator[tuple[ObjectStore, str]]:
    """A store that listens on the loopback, and its endpoint."""
    store = ObjectStore()

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            url = urlsplit(self.path)
            path, query = unquote(url.path).strip("/"), parse_qs(url.query)
            if store.refusal is not None:
                text = f"<Error><Code>AccessDenied</Code><Message>{store.refusal}</Message></Error>"
                self._send(403, text.encode(), body)
            elif "list-type" in query:
                self._send(200, store.listing(path, query).encode(), body)
            elif path in store.objects:
                store.reads += body
                content, put_at = store.objects[path]
                headers = {"Last-Modified": format_datetime(put_at, usegmt=True), "ETag": '"1"'}
                asked = self.headers.get("Range")
                if asked is None:
                    self._send(200, content, body, headers)
                    return
                first, last = (int(each) for each in asked.removeprefix("bytes=").split("-"))
                part = content[first : last + 1]
                headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
                self._send(206, part, body, headers)
            else:
                self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", body)

        def _send(
            self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Requests) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield store, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
