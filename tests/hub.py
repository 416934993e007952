"""A Hub in a thread: what `huggingface_hub` asks of the real one when models are pushed and fetched, on loopback, and
what it and `datasets` ask when data sets are read. The repositories of data sets are called `datasets/owner/name`.

Files of text go into the commit itself and others through Git LFS, as the Hub decides it. Nothing is said of Xet in
what it answers, and uploads by Xet are switched off by HF_HUB_DISABLE_XET, which is the library's own way.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import datasets
import huggingface_hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

TOKEN = "hf_a_token_that_no_message_may_show"
READ_ONLY = "hf_a_token_that_may_read"


@dataclass
class Repo:
    """A repository: what branches there are, and the files of each commit."""

    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: dict[str, bytes], message: str = "") -> str:
        blobs = sorted((name, _blob(content)) for name, content in files.items())
        number = hashlib.sha1(f"{len(self.commits)} {blobs}".encode()).hexdigest()
        self.commits[number] = files
        self.branches[branch] = number
        self.messages.append(message)
        return number

    def at(self, revision: str) -> str | None:
        revision = unquote(revision)
        return revision if revision in self.commits else self.branches.get(revision)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        commit = self.at(revision)
        assert commit is not None
        return self.commits[commit]


class FakeHub(ThreadingHTTPServer):
    """The server; repositories by name, what was uploaded by its sum, and every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.asked: list[str] = []
        #: Requests whose line matches are refused with this status.
        self.failing: tuple[str, int] | None = None
        #: The connection breaks in the middle of the answer to requests whose line matches, so many times.
        self.breaking: tuple[str, int] | None = None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, files: dict[str, bytes] | None = None, *, private: bool = False) -> Repo:
        repo = self.repos[name] = Repo(private)
        repo.commit("main", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n", **(files or {})})
        return repo


@contextmanager
def serving(caches: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A server that the libraries of this process take for the Hub, with empty caches below a folder."""
    constants, config = huggingface_hub.constants, datasets.config
    with FakeHub() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        for module, name in ((constants, "ENDPOINT"), (config, "HF_ENDPOINT")):
            monkeypatch.setattr(module, name, server.endpoint)
        for module in (constants, config):
            monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(caches / "hub-cache"))
        monkeypatch.setattr(config, "HF_DATASETS_CACHE", caches / "datasets-cache")
        monkeypatch.setattr(config, "DOWNLOADED_DATASETS_PATH", caches / "datasets-cache" / "downloads")
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(caches / "no-token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
        server.shutdown()


ROUTES: list[tuple[str, re.Pattern[str], str]] = [
    ("GET", re.compile(r"/api/whoami-v2"), "whoami"),
    ("POST", re.compile(r"/api/repos/create"), "create"),
    ("POST", re.compile(r"/api/validate-yaml"), "validate"),
    ("POST", re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/(?P<revision>.+)"), "preupload"),
    ("POST", re.compile(r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch"), "batch"),
    ("PUT", re.compile(r"/lfs/(?P<oid>[0-9a-f]{64})"), "upload"),
    ("POST", re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/(?P<revision>.+)"), "commit"),
    ("POST", re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/branch/(?P<revision>.+)"), "branch"),
    ("GET", re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)"), "tree"),
    ("GET", re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/revision/(?P<revision>.+)"), "info"),
    ("GET", re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)"), "info"),
    ("POST", re.compile(r"/api/(?P<repo>datasets/[^/]+/[^/]+)/paths-info/(?P<revision>.+)"), "paths"),
    ("GET", re.compile(r"/api/(?P<repo>datasets/[^/]+/[^/]+)/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?"), "tree"),
    ("GET", re.compile(r"/api/(?P<repo>datasets/[^/]+/[^/]+)/revision/(?P<revision>.+)"), "info"),
    ("GET", re.compile(r"/api/(?P<repo>datasets/[^/]+/[^/]+)"), "info"),
    ("GET", re.compile(r"/(?P<repo>datasets/[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"), "resolve"),
    ("HEAD", re.compile(r"/(?P<repo>datasets/[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"), "resolve"),
    ("GET", re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"), "resolve"),
    ("HEAD", re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"), "resolve"),
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle_any(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(f"{self.command} {path}")
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        failing = self.server.failing
        if failing is not None and re.search(failing[0], f"{self.command} {path}"):
            self.refuse(failing[1])
            return
        for command, pattern, name in ROUTES:
            match = pattern.fullmatch(path)
            if command == self.command and match is not None:
                self.dispatch(name, match.groupdict())
                return
        self.refuse(404)

    do_GET = do_POST = do_PUT = do_HEAD = handle_any  # noqa: N815 (names that http.server calls)

    def dispatch(self, name: str, parts: dict[str, str]) -> None:
        writes = self.command in ("POST", "PUT") and name not in ("upload", "validate", "paths")
        if writes or name == "whoami":
            if self.token not in (TOKEN, READ_ONLY):
                self.refuse(401)
                return
            if writes and self.token == READ_ONLY:
                self.refuse(403)
                return
        if "repo" in parts:
            repo = self.server.repos.get(parts["repo"])
            if repo is None or (repo.private and self.token is None):
                self.refuse(401 if self.token is None else 404, "RepoNotFound")
                return
            self.repo = repo
        if "revision" in parts and name != "branch" and self.repo.at(parts["revision"]) is None:
            self.refuse(404, "RevisionNotFound")
            return
        getattr(self, name)(**parts)

    @property
    def token(self) -> str | None:
        header = self.headers.get("Authorization")
        return None if header is None else header.removeprefix("Bearer ")

    @property
    def content(self) -> Any:
        return json.loads(self.body)

    def refuse(self, status: int, code: str | None = None) -> None:
        self.answer({"error": f"refused, {self.headers.get('Authorization')}"}, status, {"X-Error-Code": code})

    def answer(self, content: Any, status: int = 200, headers: dict[str, str | None] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.breaks():
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self.wfile.write(data)

    def breaks(self) -> bool:
        """Whether the connection breaks this time."""
        pattern, times = self.server.breaking or ("", 0)
        if not times or not re.search(pattern, f"{self.command} {urlsplit(self.path).path}"):
            return False
        self.server.breaking = (pattern, times - 1)
        return True

    def whoami(self) -> None:
        self.answer({"type": "user", "name": "me", "auth": {"type": "access_token"}})

    def validate(self) -> None:
        self.answer({"errors": [], "warnings": []})

    def create(self) -> None:
        asked = self.content
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if not name.startswith("me/"):
            self.refuse(403)
            return
        url = f"{self.server.endpoint}/{name}"
        if name in self.server.repos:
            self.answer({"url": url, "error": "there is one"}, 409)
            return
        self.server.add(name, private=asked.get("visibility") == "private" or bool(asked.get("private")))
        self.answer({"url": url, "name": name, "id": name})

    def branch(self, repo: str, revision: str) -> None:
        name = unquote(revision)
        if name in self.repo.branches:
            self.refuse(409)
            return
        self.repo.branches[name] = self.repo.branches["main"]
        self.answer({})

    def preupload(self, repo: str, revision: str) -> None:
        files = [
            {
                "path": each["path"],
                "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
            }
            for each in self.content["files"]
        ]
        self.answer({"files": files})

    def batch(self, repo: str) -> None:
        objects = []
        for each in self.content["objects"]:
            upload = {"href": f"{self.server.endpoint}/lfs/{each['oid']}", "header": {}}
            new = {} if each["oid"] in self.server.large else {"actions": {"upload": upload}}
            objects.append({**each, **new})
        self.answer({"transfer": "basic", "objects": objects})

    def upload(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            self.refuse(400)
            return
        self.server.large[oid] = self.body
        self.answer(b"")

    def commit(self, repo: str, revision: str) -> None:
        branch = unquote(revision)
        files, message = dict(self.repo.files(branch)), ""
        for line in self.body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "header":
                message = value["summary"]
            elif operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        number = self.repo.commit(branch, files, message)
        url = f"{self.server.endpoint}/{repo}/commit/{number}"
        self.answer({"success": True, "commitOid": number, "commitUrl": url, "hookOutput": ""})

    def info(self, repo: str, revision: str = "main") -> None:
        siblings = [{"rfilename": name} for name in self.repo.files(revision)]
        name = repo.removeprefix("datasets/")
        about = {"id": name, "modelId": name, "sha": self.repo.at(revision), "private": self.repo.private}
        self.answer({**about, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def tree(self, repo: str, revision: str, folder: str | None = None) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        below = f"{unquote(folder)}/" if folder else ""
        entries = [each for each in self.entries(revision) if each["path"].startswith(below)]
        if asked["recursive"] not in (["True"], ["true"], ["1"]):
            entries = [each for each in entries if "/" not in each["path"].removeprefix(below)]
        if below and not entries:
            self.refuse(404, "EntryNotFound")
            return
        self.answer(entries)

    def paths(self, repo: str, revision: str) -> None:
        wanted = parse_qs(self.body.decode()).get("paths", [])
        self.answer([each for each in self.entries(revision) if each["path"] in wanted])

    def entries(self, revision: str) -> list[dict[str, Any]]:
        """Every folder and file of a commit."""
        files = self.repo.files(revision)
        folders = {str(each) for name in files for each in PurePosixPath(name).parents} - {"."}
        return [
            *({"type": "directory", "path": name, "oid": _blob(name.encode())} for name in sorted(folders)),
            *(
                {"type": "file", "path": name, "size": len(content), "oid": _blob(content), **_large(name, content)}
                for name, content in files.items()
            ),
        ]

    def resolve(self, repo: str, revision: str, path: str) -> None:
        files = self.repo.files(revision)
        name = unquote(path)
        if name not in files:
            self.refuse(404, "EntryNotFound")
            return
        content = files[name]
        etag = hashlib.sha256(content).hexdigest() if name.endswith(".safetensors") else _blob(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self.repo.at(revision), "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if span is None:
            self.answer(content, 200, headers)
            return
        part = content[int(span[1]) : int(span[2]) + 1 if span[2] else None]
        last = int(span[1]) + len(part) - 1
        self.answer(part, 206, {**headers, "Content-Range": f"bytes {span[1]}-{last}/{len(content)}"})


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _large(name: str, content: bytes) -> dict[str, Any]:
    if not name.endswith(".safetensors"):
        return {}
    return {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}}
