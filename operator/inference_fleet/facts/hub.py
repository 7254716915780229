"""The Hugging Face hub's protocol, or a mirror's: which commit a revision is, what files it has, where their bytes are.

Source: https://huggingface.co/docs/hub/api. `HF_ENDPOINT` names another hub, `HF_TOKEN` is sent to that hub and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import orjson

from inference_fleet.facts.failure import Reason, SourceFailure
from inference_fleet.facts.web import Retries, Web, origin, shown

PUBLIC_HUB = "https://huggingface.co"
MAX_LISTING_BYTES = 16 * 2**20
MAX_PAGES = 20
"""A page lists at most 1,000 files."""

_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as its folder lists it. `digest` is `sha256:…`, `git-sha1:…` (small files on the hub), or empty."""

    path: str
    bytes: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Hub:
    """One hub and what may be read of it."""

    endpoint: str = PUBLIC_HUB
    token: str = field(default="", repr=False)
    retries: Retries = field(default_factory=Retries)
    timeout_seconds: float = 30.0

    @property
    def web(self) -> Web:
        """Requests that carry the token to this hub only."""
        return Web(
            token=self.token,
            token_origin=origin(urlsplit(self.endpoint)),
            timeout_seconds=self.timeout_seconds,
            retries=self.retries,
        )

    def commit(self, repository: str, revision: str) -> str:
        """The commit that a branch, tag or commit stands for now."""
        url = f"{self._root}/api/models/{quote(repository)}/revision/{quote(revision, safe='')}"
        answer = self._json(url, self.web.content(url, MAX_LISTING_BYTES))
        sha = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(sha, str) or not re.fullmatch(r"[0-9a-f]{7,64}", sha):
            raise SourceFailure(Reason.MALFORMED, f"{shown(url)} names no commit", "Check that HF_ENDPOINT is a hub")
        return sha

    def files(self, repository: str, commit: str) -> tuple[ListedFile, ...]:
        """All files of a commit, in order of their paths."""
        url = f"{self._root}/api/models/{quote(repository)}/tree/{commit}?recursive=1"
        found: list[ListedFile] = []
        for _ in range(MAX_PAGES):
            body, following = self.retries.run(lambda: self._page(url))  # noqa: B023 - called at once
            answer = self._json(url, body)
            if not isinstance(answer, list):
                raise SourceFailure(Reason.MALFORMED, f"{shown(url)} lists no files", "Check that HF_ENDPOINT is a hub")
            found += [_file(item) for item in answer if isinstance(item, dict) and item.get("type") == "file"]
            if not following:
                return tuple(sorted(found, key=lambda file: file.path))
            url = urljoin(url, following)
        raise SourceFailure(Reason.UNSUPPORTED, f"{repository} has more than {MAX_PAGES * 1000} files")

    def address(self, repository: str, commit: str, path: str) -> str:
        """Where a file's bytes are."""
        return f"{self._root}/{quote(repository)}/resolve/{commit}/{quote(path)}"

    @property
    def _root(self) -> str:
        return self.endpoint.rstrip("/")

    def _page(self, url: str) -> tuple[bytes, str]:
        response = self.web.get(url)
        link = _NEXT.search(response.header("Link"))
        return response.content(MAX_LISTING_BYTES), link[1] if link else ""

    @staticmethod
    def _json(url: str, body: bytes) -> Any:
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise SourceFailure(
                Reason.MALFORMED, f"{shown(url)} answers something else than JSON", "Check that HF_ENDPOINT is a hub"
            ) from error


def _file(item: dict[str, Any]) -> ListedFile:
    path, size, lfs, oid = item.get("path"), item.get("size"), item.get("lfs"), item.get("oid")
    if not isinstance(path, str) or not isinstance(size, int) or path.startswith("/") or ".." in path.split("/"):
        raise SourceFailure(Reason.MALFORMED, f"the hub lists a file as {str(path)[:100]!r} of {str(size)[:30]} bytes")
    if isinstance(lfs, dict):
        return ListedFile(path, int(lfs.get("size", size)), f"sha256:{str(lfs.get('oid', '')).removeprefix('sha256:')}")
    return ListedFile(path, size, f"git-sha1:{oid}" if isinstance(oid, str) and len(oid) == 40 else "")
