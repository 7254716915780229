"""Container images as docker-archives, written without a builder or a registry, the same bytes from the same content."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

EPOCH = 315532800
"""Every file's time in an image: 1 January 1980, so that nothing depends on when it was packed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a container of the image runs, and as whom."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "65532:65532"
    """Numeric, so that `runAsNonRoot` can be checked."""
    labels: Mapping[str, str] = field(default_factory=dict)


def write_layer(tree: Path, target: Path) -> str:
    """Packs a folder's content as one layer; returns the layer's digest.

    Owners become root, set-user-id bits are dropped (nothing in these images may gain rights), devices and sockets are
    refused.
    """
    first_name: dict[tuple[int, int], str] = {}
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(tree.rglob("*")):
            entry = tarfile.TarInfo(str(path.relative_to(tree)))
            facts = path.lstat()
            entry.mtime = EPOCH
            entry.mode = stat.S_IMODE(facts.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
            if stat.S_ISDIR(facts.st_mode):
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            elif stat.S_ISLNK(facts.st_mode):
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                tar.addfile(entry)
            elif stat.S_ISREG(facts.st_mode):
                identity = (facts.st_dev, facts.st_ino)
                if facts.st_nlink > 1 and identity in first_name:
                    entry.type, entry.linkname = tarfile.LNKTYPE, first_name[identity]
                    tar.addfile(entry)
                    continue
                first_name[identity] = entry.name
                entry.size = facts.st_size
                with path.open("rb") as content:
                    tar.addfile(entry, content)
            else:
                raise ValueError(f"{path} is neither a file, a folder nor a link")
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def image_config(layers: Sequence[str], settings: Settings, architecture: str) -> bytes:
    """The image's configuration; its digest is the image's identity. `layers` are digests, lowest first."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    document = {
        "architecture": architecture,
        "os": "linux",
        "created": "1980-01-01T00:00:00Z",
        "config": {
            "User": settings.user,
            "Env": [f"{name}={value}" for name, value in {"PATH": path, **settings.environment}.items()],
            "Entrypoint": list(settings.entrypoint) or None,
            "Cmd": list(settings.command) or None,
            "WorkingDir": "/",
            "Labels": dict(settings.labels) or None,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in layers]},
        "history": [{"created": "1980-01-01T00:00:00Z"} for _ in layers],
    }
    return json.dumps(document, sort_keys=True).encode()


def write_archive(target: Path, name: str, layers: Sequence[tuple[str, Path]], config: bytes) -> None:
    """Writes a docker-archive with one image. `layers` are digests and the files that hold them, lowest first."""
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}.tar" for digest, _ in layers]}]
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in (("manifest.json", json.dumps(manifest).encode()), (config_name, config)):
            tar.addfile(member_of(member, len(content)), io.BytesIO(content))
        for digest, path in dict(layers).items():
            with path.open("rb") as file:
                tar.addfile(member_of(f"{digest}.tar", path.stat().st_size), file)
    partial.rename(target)


def member_of(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = size, EPOCH
    return member
