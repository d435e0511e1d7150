"""RRLforge: hand-written GRPO on one GPU, and the tools that its book runs on."""

import os

# Waiting OpenMP threads soon sleep instead of spinning: with two builds on two cores, spinning costs a factor of five.
# It counts only when it is set before torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

__version__ = "0.1.0"
