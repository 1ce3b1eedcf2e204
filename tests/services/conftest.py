"""What the tests of the services room share: waiting for a condition, and a package repository on loopback."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.services.packages import Package

Eventually = Callable[..., None]


@pytest.fixture(scope="session")
def eventually() -> Eventually:
    """Wait until a condition holds, or fail."""

    def wait(condition: Callable[[], bool], *, within_s: float = 20.0, what: str = "the condition") -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true within {within_s:g} s"
            time.sleep(0.05)

    return wait


class Repository:
    """A package repository in a folder, served over HTTP on loopback, that counts what is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: Counter[str] = Counter()
        self.faults: list[str] = []  # what happens to the next requests: "cut" within the body, or "overloaded"
        handler = partial(_Handler, self, directory=str(folder))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def add(self, name: str, content: bytes) -> Package:
        """Put a package there; returns its pinned form."""
        sha256 = hashlib.sha256(content).hexdigest()
        package = Package("org.example", name, "1.0", "jar", "", sha256, len(content))
        path = self.folder / package.path
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        return package

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, repository: Repository, *args: Any, **kwargs: Any) -> None:
        self._repository = repository
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        self._repository.asked[self.path] += 1
        fault = self._repository.faults.pop() if self._repository.faults else None
        if fault == "overloaded":
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
        elif fault == "cut":
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", "15000")
            self.end_headers()
            self.wfile.write(b"one" * 3000)
        else:
            super().do_GET()

    def log_message(self, *_args: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A package repository that fetches go to."""
    folder = tmp_path / "repository"
    folder.mkdir()
    served = Repository(folder)
    monkeypatch.setenv("HEADRACE_MAVEN_REPOSITORY", served.url)
    yield served
    served.close()
