"""Names of cards overlap: the memory and the whole name decide."""
import pytest

from rrlforge import hardware
from rrlforge.errors import ForgeError


@pytest.mark.parametrize(
    "name, gib, right",
    [
        ("NVIDIA GeForce RTX 5090", 31.84, "RTX 5090"),
        ("NVIDIA GeForce RTX 5090", 31.36, "RTX 5090"),
        ("NVIDIA GeForce RTX 5090 D", 31.84, "RTX 5090 D"),
        ("NVIDIA GeForce RTX 5090D", 31.36, "RTX 5090 D"),
        ("NVIDIA GeForce RTX 5090 D v2", 23.88, "RTX 5090 D V2"),
        ("NVIDIA GeForce RTX 5090 D", 23.88, "RTX 5090 D V2"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", 23.89, None),
        ("NVIDIA GeForce RTX 5090", 23.88, None),
        ("NVIDIA GeForce RTX 5090 D v2", 31.84, None),
        ("NVIDIA GeForce RTX 5080", 15.92, "RTX 5080"),
        ("NVIDIA GeForce RTX 5070 Ti", 15.92, "RTX 5070 Ti"),
        ("NVIDIA GeForce RTX 5070", 11.94, None),
        ("NVIDIA GeForce RTX 4090", 23.64, "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 D", 23.64, None),
        ("NVIDIA GeForce RTX 4090", 47.99, None),
        ("NVIDIA GeForce RTX 3090", 23.69, "RTX 3090"),
        ("NVIDIA GeForce RTX 3090 Ti", 23.69, None),
        ("NVIDIA H200", 139.8, "H200"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 95.6, None),
        ("", 0.0, None),
    ],
)
def test_a_card_is_told_by_name_and_memory(name, gib, right):
    found = hardware.find(name, gib)
    assert (found.name if found else None) == right


def test_every_card_is_found_by_its_own_name_with_either_memory():
    for card in hardware.CARDS:
        assert hardware.find(f"NVIDIA GeForce {card.name}", card.cuda_gib) is card
        assert hardware.find(f"NVIDIA GeForce {card.name}", card.smi_mib / 1024) is card
        assert hardware.card(card.name) is card


def test_figures_are_plausible_and_each_has_a_source():
    for card in hardware.CARDS:
        assert card.source and card.cuda_gib < card.smi_mib / 1024 < card.memory_gb * 1.04
        assert card.smi_mib * 2**20 > card.memory_gb * 1e9 * 0.98


def test_bandwidth_is_bus_times_rate():
    """GDDR7 at 28 and 30 Gbit/s, GDDR6X at 21 and 19.5: bits of the bus over 8."""
    bus = {"RTX 5090": (512, 28), "RTX 5090 D": (512, 28), "RTX 5090 D V2": (384, 28), "RTX 5080": (256, 30),
           "RTX 5070 Ti": (256, 28), "RTX 4090": (384, 21), "RTX 3090": (384, 19.5)}
    for name, (bits, rate) in bus.items():
        assert hardware.card(name).bandwidth_gb_s == pytest.approx(bits * rate / 8, abs=0.5)


def test_the_derived_figure_of_the_5070_ti():
    assert hardware.card("5070 Ti").bf16_tflops == pytest.approx(112.6 * 70 / 84 * 2452 / 2617, abs=0.1)


def test_arch_is_the_name_of_the_kernels():
    assert hardware.card("rtx 5090").arch == "sm_120" and hardware.card("3090").arch == "sm_86"


def test_an_unknown_card_is_named_with_those_that_are_known():
    with pytest.raises(ForgeError, match="no card '6090'; known are RTX 5090, RTX 5090 D,"):
        hardware.card("6090")
