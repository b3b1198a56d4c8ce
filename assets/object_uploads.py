"""What clients of S3 send: bodies in chunks, and objects in parts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from email.message import Message
from io import BufferedIOBase


def read_body(sent: BufferedIOBase, headers: Message) -> bytes:
    """Read the body of a request.

    Clients may send it in chunks of HTTP's, and Amazon's in chunks of their own, with checksums
    after it.
    """
    if headers.get("Transfer-Encoding", "").lower() == "chunked":
        body = _chunks_of_http(sent)
    else:
        body = sent.read(int(headers.get("Content-Length") or 0))
    if "aws-chunked" in (headers.get("Content-Encoding") or ""):
        body = _chunks_of_amazon(body)
    announced = headers.get("X-Amz-Decoded-Content-Length")
    if announced is not None and len(body) != int(announced):
        raise ValueError(f"{len(body)} bytes came, and {announced} were announced.")
    return body


def _chunks_of_http(sent: BufferedIOBase) -> bytes:
    body = bytearray()
    while size := int(sent.readline().partition(b";")[0], 16):
        body += sent.read(size)
        sent.readline()
    while sent.readline().strip():  # headers after the body
        pass
    return bytes(body)


def _chunks_of_amazon(sent: bytes) -> bytes:
    body = bytearray()
    while sent:
        head, _, sent = sent.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if not size:
            break
        body += sent[:size]
        sent = sent[size + len(b"\r\n") :]
    return bytes(body)


@dataclass
class Uploads:
    """Objects that come in parts, until all parts are there.

    Attributes:
        parts: By the upload's id, the parts by their numbers.
    """

    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def begin(self) -> str:
        """Begin an upload, and return its id."""
        upload = uuid.uuid4().hex
        self.parts[upload] = {}
        return upload

    def add(self, upload: str, number: int, part: bytes) -> None:
        """Add a part; KeyError if there is no such upload."""
        self.parts[upload][number] = part

    def complete(self, upload: str) -> bytes:
        """End an upload, and return the object; KeyError if there is no such upload."""
        parts = self.parts.pop(upload)
        return b"".join(parts[number] for number in sorted(parts))

    def forget(self, upload: str) -> None:
        """End an upload without an object."""
        self.parts.pop(upload, None)
