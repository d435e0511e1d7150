"""Cards that readers have, and the one behind the records: specifications, each with its source.

`find` tells a card from the name and the memory that the driver reports. Names overlap: "RTX 5090" is a part
of "RTX 5090 D", of "RTX 5090 D v2" (24 GB) and of "RTX 5090 Laptop GPU" (24 GB, another chip).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rrlforge.errors import ForgeError

MIB_SLACK = 0.04  # share by which the memory that a driver reports may differ from the card's own figure


@dataclass(frozen=True)
class Card:
    """One kind of card.

    memory_gb        memory as sold, GB as the maker prints it
    smi_mib          what nvidia-smi calls total, MiB (2**20 bytes)
    cuda_gib         what a CUDA program sees, GiB (2**30 bytes)
    bandwidth_gb_s   memory bandwidth, 1e9 bytes a second
    bf16_tflops      dense bf16 with fp32 accumulation, 1e12 operations a second
    capability       CUDA compute capability, (12, 0) is sm_120
    watts            board power, W
    source           where the figures stand; what is derived says so
    """

    name: str
    memory_gb: int
    smi_mib: int
    cuda_gib: float
    bandwidth_gb_s: float
    bf16_tflops: float
    capability: tuple[int, int]
    watts: int
    source: str

    @property
    def arch(self) -> str:
        """Name of the kernels it needs: sm_120 for capability (12, 0)."""
        return "sm_{}{}".format(*self.capability)


BLACKWELL = "NVIDIA RTX Blackwell architecture whitepaper, specification tables"
LOGS = "memory: nvidia-smi and torch in public logs"
TOMS = "Tom's Hardware 2025-08-12, RTX 5090D V2 specification table"

CARDS = (
    Card(
        "RTX 5090", 32, 32607, 31.36, 1792, 209.5, (12, 0), 575, f"{BLACKWELL}; {LOGS} (32607 MiB, 32109 MiB)"
    ),
    Card(
        "RTX 5090 D",
        32,
        32607,
        31.36,
        1792,
        209.5,
        (12, 0),
        575,
        f"{TOMS}; {LOGS}; bf16: as the 5090, whose SMs and clock it has; torch.matmul reached 219 and 234 TFLOP/s "
        "(zzc0721/torch-performance-test-data 167 and 93)",
    ),
    Card(
        "RTX 5090 D V2",
        24,
        24455,
        23.40,
        1344,
        209.5,
        (12, 0),
        575,
        f"{TOMS}; bandwidth: 384 bit x 28 Gbit/s / 8; {LOGS} (24455 MiB); cuda_gib: derived, less 498 MiB as on the "
        "5090; bf16: derived, as the 5090 D",
    ),
    Card(
        "RTX 5080", 16, 16303, 15.47, 960, 112.6, (12, 0), 360, f"{BLACKWELL}; {LOGS} (16303 MiB, 15.47 GiB)"
    ),
    Card(
        "RTX 5070 Ti",
        16,
        16303,
        15.47,
        896,
        87.9,
        (12, 0),
        300,
        f"NVIDIA product page; bf16: derived, 112.6 x 70/84 SMs x 2452/2617 MHz of the 5080; {LOGS} (16303 MiB, "
        "15.47 GiB)",
    ),
    Card(
        "RTX 4090",
        24,
        24564,
        23.64,
        1008,
        165.2,
        (8, 9),
        450,
        f"NVIDIA Ada architecture whitepaper; {LOGS} (24564 MiB, 23.64 GiB)",
    ),
    Card(
        "RTX 3090",
        24,
        24576,
        23.69,
        936,
        71.0,
        (8, 6),
        350,
        f"NVIDIA Ampere GA102 architecture whitepaper; {LOGS} (24576 MiB, 24259 MiB)",
    ),
    Card(
        "H200",
        141,
        143771,
        139.80,
        4800,
        989.5,
        (9, 0),
        700,
        f"NVIDIA H200 datasheet (dense: half of the figure with sparsity); {LOGS} (143771 MiB, 139.80 GiB)",
    ),
)


def words(name: str) -> tuple[str, ...]:
    """("5090", "d", "v2") of "NVIDIA GeForce RTX 5090D V2": what tells one card from another."""
    text = re.sub(r"nvidia|geforce|rtx", " ", name.lower())
    return tuple(re.findall(r"\d{2,}|[a-z]+\d*", text))


def card(name: str) -> Card:
    """The card called `name` ("5090", "RTX 5090 D V2"); ForgeError names those that are known."""
    for known in CARDS:
        if words(known.name) == words(name):
            return known
    raise ForgeError(f"no card {name!r}; known are {', '.join(c.name for c in CARDS)}")


def find(name: str, memory_gib: float) -> Card | None:
    """The card that the driver calls `name` and that holds `memory_gib` (total, GiB); None if unknown.

    Both must agree: an "RTX 5090 D" with 24 GiB is the V2, an "RTX 5090" with 24 GiB is none of these. A
    laptop's card shares the desktop card's name, not its chip nor its memory: it is never found.
    """
    for known in CARDS:
        if words(known.name) == words(name) and _holds(known, memory_gib):
            return known
    v2 = card("RTX 5090 D V2")
    return v2 if words(name) == ("5090", "d") and _holds(v2, memory_gib) else None


def _holds(known: Card, memory_gib: float) -> bool:
    return known.cuda_gib * (1 - MIB_SLACK) <= memory_gib <= known.smi_mib / 1024 * (1 + MIB_SLACK)
