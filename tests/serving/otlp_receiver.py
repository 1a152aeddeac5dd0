"""An OTLP/HTTP collector of a few lines: decodes what arrives and keeps the spans."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """url: for router.tracing.endpoint. spans: as protobuf, in order of arrival; status: what it answers."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resource: dict[str, Any] = {}
        self.schema_url = ""
        self.paths: list[str] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.paths.append(self.path)
                if outer.status == 200:
                    outer.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(outer.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.resource = attributes(resource.resource)
            for scope in resource.scope_spans:
                self.schema_url = scope.schema_url
                self.spans.extend(scope.spans)

    def wait(self, count: int, seconds: float = 10) -> list[Any]:
        end = time.monotonic() + seconds
        while len(self.spans) < count and time.monotonic() < end:
            time.sleep(0.01)
        return self.spans

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def attributes(thing: Any) -> dict[str, Any]:
    """Attributes of a protobuf span, event or resource as plain values."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in thing.attributes}
