"""RRLforge: hand-written GRPO on one GPU, and the tools that its book runs on."""

import os

# Waiting OpenMP threads sleep instead of spinning. Two builds on two cores, or two threads that the system keeps on one
# core, are several times slower when they spin. It counts only when it is set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
