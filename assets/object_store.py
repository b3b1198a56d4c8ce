"""A server that speaks as much of S3's protocol as drivers of Spark and Arrow need, on loopback.

`make demo ON=object_store` keeps tables in it, and tests of object stores ask it.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from assets.object_uploads import Uploads, read_body

_PAGE = 1_000

Object = tuple[bytes, datetime]
"""An object's content, and the time at which it was put."""


class KeptObjects(MutableMapping[str, Object]):
    """Objects by `bucket/key` in a file, which are there again after the server has ended."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS objects (path TEXT PRIMARY KEY, content BLOB, put_at TEXT)"
        )

    def __getitem__(self, path: str) -> Object:
        query = "SELECT content, put_at FROM objects WHERE path = ?"
        found = self._database.execute(query, (path,)).fetchone()
        if found is None:
            raise KeyError(path)
        return found[0], datetime.fromisoformat(found[1])

    def __setitem__(self, path: str, put: Object) -> None:
        content, put_at = put
        row = (path, content, put_at.isoformat())
        self._database.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", row)

    def __delitem__(self, path: str) -> None:
        if not self._database.execute("DELETE FROM objects WHERE path = ?", (path,)).rowcount:
            raise KeyError(path)

    def __iter__(self) -> Iterator[str]:
        return iter([path for (path,) in self._database.execute("SELECT path FROM objects")])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()


@dataclass
class ObjectStore:
    """The objects of a server, and what it was asked.

    Attributes:
        objects: By `bucket/key`.
        listings: How many listings it answered.
        reads: How many objects were read, or parts of them.
        refusal: With it, every request is answered with an error of these words.
        access_key: With it, requests that do not name it are refused. It is no proof, as signatures
            are, but nobody guesses it.
        is_conditional: Whether it honours `If-None-Match: *`.
        trouble: Called with the method and path of each request, with `before` True before it is
            done, and False after; with the status that it returns, the request is answered by an
            error in place of its answer, None for no error.
        listed_after: For how long new objects are left out of listings.
        uploads: Objects that come in parts.
        lock: Held while a request is answered: puts that must not replace an object are atomic.
    """

    objects: MutableMapping[str, Object] = field(default_factory=dict)
    listings: int = 0
    reads: int = 0
    refusal: str | None = None
    access_key: str | None = None
    is_conditional: bool = True
    trouble: Callable[[str, str, bool], int | None] | None = None
    listed_after: timedelta = timedelta()
    uploads: Uploads = field(default_factory=Uploads)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, path: str, content: bytes = b"") -> None:
        """Keep an object; the one that there was is replaced."""
        now = datetime.now(timezone.utc)
        if (
            now.microsecond < 1_000
        ):  # clients, who see milliseconds, would take it for a rounded one
            now = now.replace(microsecond=1_000)
        with self.lock:
            self.objects[path] = (content, now)

    def listing(self, bucket: str, query: dict[str, list[str]]) -> str:
        """Answer ListObjectsV2."""
        self.listings += 1
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        size = int(query.get("max-keys", [_PAGE])[0])
        entries: dict[str, str] = {}
        newest = datetime.now(timezone.utc) - self.listed_after
        for path in sorted(self.objects):
            key = path.removeprefix(f"{bucket}/")
            if not path.startswith(f"{bucket}/{prefix}"):
                continue
            if self.listed_after and self.objects[path][1] > newest:
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


class _Requests(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    store: ClassVar[ObjectStore]
    protocol_version = "HTTP/1.1"
    # An answer's head and body leave together: apart, each waits for the other's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def handle_expect_100(self) -> bool:
        """Say at once that the client may go on: it waits for that."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(b"")

    def do_PUT(self) -> None:
        self._answer(read_body(self.rfile, self.headers))

    def do_POST(self) -> None:
        self._answer(read_body(self.rfile, self.headers))

    def do_DELETE(self) -> None:
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        """Answer a request, after and before the store's troubles, during which others go on."""
        url, trouble = urlsplit(self.path), self.store.trouble
        path, query = unquote(url.path).lstrip("/"), parse_qs(url.query, keep_blank_values=True)
        if trouble is None:
            self._answer_by(path, query, body)
            return
        status = trouble(self.command, path, True)
        if status is None:
            sent, self.wfile = self.wfile, BytesIO()
            self._answer_by(path, query, body)
            answer, self.wfile = self.wfile.getvalue(), sent
            status = trouble(self.command, path, False)
        if status is None:
            self.wfile.write(answer)
        else:
            self._refuse(status, "Trouble", "Reduce your request rate, or try again.")

    def _answer_by(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        store = self.store
        with store.lock:
            if store.refusal is not None:
                self._refuse(403, "AccessDenied", store.refusal)
            elif store.access_key is not None and not self._names(store.access_key):
                self._refuse(403, "InvalidAccessKeyId", "The access key is another one.")
            elif self.command in ("GET", "HEAD"):
                self._read(path, query)
            elif self.command == "PUT" and not query.keys() - {"x-id"}:
                self._put(path, body)
            elif self.command == "DELETE" and not query.keys() - {"x-id"}:
                store.objects.pop(path, None)
                self._send(204, b"")
            elif self.command == "POST" and "delete" in query:
                self._delete_each(path.rstrip("/"), body)
            elif query.keys() & {"uploads", "uploadId"}:
                self._upload(path, query, body)
            else:
                self._refuse(501, "NotImplemented", f"{self.command} with {sorted(query)}")

    def _read(self, path: str, query: dict[str, list[str]]) -> None:
        store = self.store
        if "list-type" in query:
            self._send(200, store.listing(path.rstrip("/"), query).encode())
        elif path in store.objects:
            store.reads += self.command == "GET"
            content, put_at = store.objects[path]
            headers = {"Last-Modified": format_datetime(put_at, usegmt=True), "ETag": '"1"'}
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
            if asked is None:
                self._send(200, content, headers)
                return
            first, last = asked.groups()
            start = int(first) if first else max(0, len(content) - int(last))
            part = content[start : int(last) + 1 if first and last else None]
            headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
            self._send(206, part, headers)
        else:
            self._refuse(404, "NoSuchKey", "There is no such object.")

    def _put(self, path: str, body: bytes) -> None:
        store, copied = self.store, self.headers.get("x-amz-copy-source")
        if self._is_refused(path):
            self._refuse(412, "PreconditionFailed", "There is an object of this name.")
        elif copied is None:
            store.put(path, body)
            self._send(200, b"", {"ETag": '"1"'})
        elif (source := unquote(copied).lstrip("/")) in store.objects:
            store.put(path, store.objects[source][0])
            now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S}Z"
            text = f'<LastModified>{now}</LastModified><ETag>"1"</ETag>'
            self._send(200, f"<CopyObjectResult>{text}</CopyObjectResult>".encode())
        else:
            self._refuse(404, "NoSuchKey", "There is no object to copy.")

    def _is_refused(self, path: str) -> bool:
        """Return whether the request must not replace an object, and there is one."""
        is_conditional = self.store.is_conditional and self.headers.get("If-None-Match") == "*"
        return is_conditional and path in self.store.objects

    def _upload(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        """Begin, continue, complete or give up an upload in parts."""
        uploads, upload = self.store.uploads, query.get("uploadId", [""])[0]
        try:
            if self.command == "POST" and "uploads" in query:
                begun = f"<UploadId>{uploads.begin()}</UploadId>"
                result = f"<InitiateMultipartUploadResult>{begun}</InitiateMultipartUploadResult>"
                self._send(200, result.encode())
            elif self.command == "PUT":
                number = query["partNumber"][0]
                uploads.add(upload, int(number), body)
                self._send(200, b"", {"ETag": f'"{number}"'})
            elif self.command == "POST" and self._is_refused(path):
                self._refuse(412, "PreconditionFailed", "There is an object of this name.")
            elif self.command == "POST":
                self.store.put(path, uploads.complete(upload))
                etag = '<ETag>"1"</ETag>'
                result = f"<CompleteMultipartUploadResult>{etag}</CompleteMultipartUploadResult>"
                self._send(200, result.encode())
            else:
                uploads.forget(upload)
                self._send(204, b"")
        except KeyError:
            self._refuse(404, "NoSuchUpload", "There is no such upload.")

    def _delete_each(self, bucket: str, body: bytes) -> None:
        for element in ElementTree.fromstring(body).iter():
            if element.tag.rpartition("}")[2] == "Key":
                self.store.objects.pop(f"{bucket}/{element.text}", None)
        self._send(200, b"<DeleteResult/>")

    def _names(self, access_key: str) -> bool:
        return f"Credential={access_key}/" in (self.headers.get("Authorization") or "")

    def _refuse(self, status: int, code: str, message: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        self._send(status, text.encode())

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def object_store(store: ObjectStore | None = None) -> Iterator[tuple[ObjectStore, str]]:
    """Serve a store on loopback until the context is left; yield it with its endpoint."""
    answering = store or ObjectStore()
    requests = type("Requests", (_Requests,), {"store": answering})
    with ThreadingHTTPServer(("127.0.0.1", 0), requests) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield answering, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
