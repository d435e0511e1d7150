"""Figures that read well on a light and on a dark page: a Chinese font, one palette, a quiet style."""

from importlib.resources import as_file, files

import matplotlib
from matplotlib import font_manager
from matplotlib.colors import LinearSegmentedColormap

# Okabe-Ito: told apart by readers with any colour vision.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
INK, GRID = "#333A44", "#D9DDE3"


def use_cjk():
    """Register the packaged Chinese font (Noto Sans SC, SIL OFL 1.1) and the book's figure style."""
    with as_file(files("rrlforge") / "data" / "fonts" / "NotoSansSC-GB2312.otf") as path:
        font_manager.fontManager.addfont(str(path))
        name = font_manager.FontProperties(fname=str(path)).get_name()
    matplotlib.rcParams.update(
        {
            "font.family": "sans-serif",
            "font.sans-serif": [name, *matplotlib.rcParamsDefault["font.sans-serif"]],
            "axes.unicode_minus": False,
            "axes.prop_cycle": matplotlib.cycler(color=PALETTE),
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": GRID,
            "grid.linewidth": 0.8,
            "axes.axisbelow": True,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",  # a white card, also on a dark page
            "figure.figsize": (7.2, 4.0),
            "figure.dpi": 110,
            "savefig.dpi": 160,
            "figure.constrained_layout.use": True,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
        }
    )


def smooth(values, window):
    """Trailing mean over at most `window` values: same length as `values`, no value from the future."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def curve(ax, steps, values, label=None, window=1, color=None):
    """Draw a training curve: the raw values pale, their trailing mean over `window` steps on top."""
    (line,) = ax.plot(steps, smooth(list(values), window), label=label, color=color)
    if window > 1:
        ax.plot(steps, values, color=line.get_color(), alpha=0.25, linewidth=1)
    return line


def clip_cases(axes, objective):
    """Draw `objective(ratio, advantage)` with its clip at 0.8 and 1.2 against the ratio, on two axes: advantage 1, -1.

    Dotted: without the clip. Thick orange: where clip leaves no gradient. The dot is where a step begins.
    """
    ratios = [0.4 + 0.005 * k for k in range(241)]
    for ax, advantage, title in zip(axes, (1.0, -1.0), ("优势为正", "优势为负")):
        ax.axvspan(0.8, 1.2, color=INK, alpha=0.07)
        ax.plot(ratios, [r * advantage for r in ratios], color=INK, linestyle=":", linewidth=1.2, label="不 clip：ρA")
        ax.plot(ratios, [objective(r, advantage) for r in ratios], color=BLUE, label="目标")
        flat = [r for r in ratios if (r > 1.2 if advantage > 0 else r < 0.8)]
        ax.plot(flat, [objective(r, advantage) for r in flat], color=ORANGE, linewidth=4, label="没有梯度")
        ax.scatter([1], [advantage], color=BLUE, zorder=3)
        ax.set(ylabel="目标", title=title)
    axes[0].legend(loc="upper left")
    axes[-1].set(xlabel="ρ = 新概率 / 旧概率（灰带是 0.8 到 1.2）")


def token_map(ax, labels, logprobs, columns=30):
    """Draw completions as rows of cells, one a token, coloured by surprise -log p (nats); at most `columns` tokens.

    labels, logprobs: one list a completion. A label longer than two characters is left out.
    """
    width = min(columns, max(map(len, labels)))
    surprise = [[-v for v in row[:width]] + [float("nan")] * (width - len(row)) for row in logprobs]
    for i, row in enumerate(labels):
        for t, label in enumerate(row[:width]):
            if len(label) <= 2:
                ax.text(t, i, label.replace("$", r"\$"), ha="center", va="center", fontsize=12, color=INK)
    pale = LinearSegmentedColormap.from_list("pale", ["#F1F4F8", ORANGE])
    image = ax.imshow(surprise, cmap=pale, vmin=0, vmax=2, aspect="auto")
    ax.grid(False)
    ax.set(xlabel="回答的第几个 token", ylabel="第几条", yticks=range(len(labels)))
    ax.figure.colorbar(image, ax=ax, label="意外程度 −log p", extend="max", location="top", shrink=0.5, ticks=[0, 1, 2])
