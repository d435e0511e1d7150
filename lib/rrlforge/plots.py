"""Figures that read well on a light and on a dark page: a Chinese font, one palette, a quiet style."""

from importlib.resources import as_file, files

import matplotlib
from matplotlib import font_manager

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
