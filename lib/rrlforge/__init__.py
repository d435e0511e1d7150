"""RRLforge: hand-written GRPO on one GPU, and the tools that its book runs on."""

__version__ = "0.1.0"
