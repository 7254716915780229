"""Names of the parts of a split GGUF. Pure."""

from __future__ import annotations

import re

_SPLIT = re.compile(r"^(.*)-([0-9]{5})-of-([0-9]{5})\.gguf$")
MAX_PARTS = 1024


def split_parts(path: str) -> tuple[str, ...]:
    """All parts by the name of any (`…-00001-of-00003.gguf`); of a whole file just that one."""
    match = _SPLIT.match(path)
    count = int(match[3]) if match else 0
    if match is None or not 1 <= count <= MAX_PARTS:
        return (path,)
    return tuple(f"{match[1]}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1))
