"""A server of files on this machine, which can fail in many ways; and small archives."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """What it serves and how it fails are set by each test; it notes the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []  # after how many bytes to break off, request by request
        self.errors: list[int] = []  # statuses to answer instead, request by request
        self.ranges = True
        self.moved: dict[str, str] = {}  # names that are redirected
        self.requests: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        name, span = self.path[1:], self.headers.get("Range")
        self.server.requests.append((name, span))
        if name in self.server.moved:
            self.send_response(302)
            self.send_header("Location", f"/{self.server.moved[name]}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = self.server.files.get(name)
        if self.server.errors or content is None:
            self.send_error(self.server.errors.pop(0) if self.server.errors else 404)
            return
        start = int(span.removeprefix("bytes=").rstrip("-")) if span and self.server.ranges else 0
        if span and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(content)
        self.wfile.write(content[start : start + cut])

    def log_message(self, *_):
        pass


@contextmanager
def serving() -> Iterator[Server]:
    """A server that answers until the end of the block."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
