"""Files that replace an older one: written beside it, on disk before the name points to them."""
from __future__ import annotations

import json
import os
from pathlib import Path


def write_atomically(path: str | Path, data: str | bytes) -> Path:
    """Replace `path` by a file that holds `data` (text as UTF-8); returns the path.

    A reader, and a machine that loses power, sees the old file or the new one, never a part: the data is
    written beside, flushed to disk, and renamed. Where writing fails the old file stays and nothing lies beside.
    """
    path = Path(path)
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    flush(path.parent)
    return path


def write_json(path: str | Path, value) -> Path:
    """`write_atomically` of `value` as JSON; ValueError for NaN and infinity, which JSON does not have."""
    return write_atomically(path, json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def flush(path: Path) -> None:
    """Put a file's data, or a folder's names, on disk: only then has a write or a rename happened for good."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
