"""What a finished run has to say: a summary in a few lines, and its curve as a picture."""
from __future__ import annotations

import io
from pathlib import Path

from rrlforge import plots
from rrlforge.errors import ForgeError
from rrlforge.files import write_atomically
from rrlforge.runs import load_config, read_lines

SCORE = ("accuracy", "low", "high")
DRAWN = ("reward", "length", "entropy", "step_s", "rollout_s", "train_s", "sync_s", "tokens", "memory_gib")


def load_evals(folder: str | Path) -> list[dict]:
    """The lines of eval.jsonl, oldest first: step, greedy and sampled (accuracy, low, high, …)."""
    return read_lines(Path(folder) / "eval.jsonl", tuple(f"{kind}.{key}" for kind in ("greedy", "sampled") for key in SCORE))


def drawn_metrics(folder: str | Path) -> list[dict]:
    """The lines of metrics.jsonl; `ForgeError` names a line that lacks a figure of the summary or the curve."""
    return read_lines(Path(folder) / "metrics.jsonl", DRAWN)


def summary(folder: str | Path) -> str:
    """Held-out accuracy before and after with intervals, seconds a step and where they went, memory."""
    metrics, evals = drawn_metrics(folder), load_evals(folder)
    if not metrics:
        raise ForgeError(f"{folder} holds no metrics: has the run done a step?")
    lines = []
    for name in ("greedy", "sampled"):
        points = [(e["step"], e[name]) for e in evals]
        if points:
            lines.append(f"held-out {name:8s}" + "  ->  ".join(
                f"{s['accuracy']:.1%} [{s['low']:.1%}, {s['high']:.1%}] (step {step})" for step, s in points))
    total = {k: sum(m[k] for m in metrics) for k in ("step_s", "rollout_s", "train_s", "sync_s", "tokens")}
    lines.append(f"{len(metrics)} steps in {total['step_s']:.1f} s: rollout {total['rollout_s']:.1f}, train {total['train_s']:.1f}, "
                 f"sync {total['sync_s']:.2f}; {total['tokens'] / total['rollout_s']:.0f} tok/s in rollout; "
                 f"memory {max(m['memory_gib'] for m in metrics):.2f} GiB")
    return "\n".join(lines)


def draw(folder: str | Path, axes) -> None:
    """Reward with held-out accuracy, length, and entropy with KL, on three axes (Chinese labels)."""
    metrics, evals = drawn_metrics(folder), load_evals(folder)
    steps = [m["step"] for m in metrics]
    window = max(1, len(steps) // 16)
    reward, length, spread = axes
    plots.curve(reward, steps, [m["reward"] for m in metrics], "训练 reward", window, plots.BLUE)
    for name, label, color in (("greedy", "留出题 greedy", plots.RED), ("sampled", "留出题采样", plots.GREEN)):
        if evals:
            middle = [e[name]["accuracy"] for e in evals]
            reward.errorbar([e["step"] for e in evals], middle, [[m - e[name]["low"] for m, e in zip(middle, evals)],
                                                                [e[name]["high"] - m for m, e in zip(middle, evals)]],
                            fmt="o", capsize=3, color=color, label=label)
    reward.set(xlabel="步", ylabel="reward / 正确率", ylim=(min(0, min(m["reward"] for m in metrics)), None))
    reward.legend(loc="lower right")
    plots.curve(length, steps, [m["length"] for m in metrics], "平均长度", window, plots.BLUE)
    length.set(xlabel="步", ylabel="回答长度（token）", ylim=(0, None))
    plots.curve(spread, steps, [m["entropy"] for m in metrics], "熵（nat）", window, plots.ORANGE)
    kl = [(m["step"], m["kl"]) for m in metrics if m.get("kl") is not None]
    if kl:
        plots.curve(spread, [s for s, _ in kl], [k for _, k in kl], "到起点的 KL（nat）", window, plots.PURPLE)
    spread.set(xlabel="步", ylabel="nat", ylim=(0, None))
    spread.legend()


def draw_record(record: dict, path: str | Path, title: str) -> Path:
    """A training record as a picture: reward of every seed, held-out accuracy with its interval before and after."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        plots.use_cjk()
        figure = Figure(figsize=(8, 4), layout="constrained")
        ax = figure.subplots()
        for seed, color in zip(record["figures"]["seeds"], plots.PALETTE):
            rewards = record["series"][f"reward/{seed}"]
            plots.curve(ax, range(len(rewards)), rewards, f"reward, seed {seed}", max(1, len(rewards) // 16), color)
            for point in record["series"][f"eval_sampled/{seed}"]:
                ax.errorbar([point["step"] + 0.6 * seed], [point["accuracy"]], [[point["accuracy"] - point["low"]],
                            [point["high"] - point["accuracy"]]], fmt="o", capsize=3, color=color)
        ax.set(xlabel="step", ylabel="reward · held-out accuracy (dots, 95 % interval)", ylim=(0, 1), title=title)
        ax.legend(loc="lower right")
        return _write(figure, Path(path))


def _write(figure, path: Path) -> Path:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    return write_atomically(path, image.getvalue())


def save_training_curve(folder: str | Path) -> Path:
    """Draw the run's curve into curve.png and return its path."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        plots.use_cjk()
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        draw(folder, figure.subplots(1, 3))
        cfg = load_config(folder)
        figure.suptitle(f"{Path(cfg.model).name} · {cfg.task_name} · 种子 {cfg.seed}")
        return _write(figure, Path(folder) / "curve.png")
