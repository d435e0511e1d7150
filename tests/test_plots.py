"""Figures: Chinese labels draw without missing glyphs, curves are smoothed from the past only."""

import warnings

import matplotlib.pyplot as plt
import pytest

from rrlforge.plots import ORANGE, PALETTE, clip_cases, curve, smooth, token_map, use_cjk


def test_chinese_labels_have_every_glyph():
    use_cjk()
    fig, ax = plt.subplots()
    ax.set_title("奖励、优势与显存账本：第 −1 步 → 正确率 95%")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fig.canvas.draw()
    plt.close(fig)


def test_smoothing_is_a_trailing_mean_of_the_same_length():
    assert smooth([1, 3, 5, 7], 2) == [1, 2, 4, 6]
    assert smooth([1, 3], 10) == [1, 2]
    assert smooth([], 3) == []


def test_smoothing_does_not_look_ahead():
    assert smooth([0, 0, 9], 3)[:2] == [0, 0]


def test_curve_draws_raw_and_smoothed():
    fig, ax = plt.subplots()
    line = curve(ax, [1, 2, 3], [0.0, 1.0, 2.0], "reward", window=2)
    assert list(line.get_ydata()) == [0.0, 0.5, 1.5]
    assert len(ax.lines) == 2 and ax.lines[1].get_color() == line.get_color()
    plt.close(fig)


@pytest.mark.parametrize("color", PALETTE)
def test_palette_is_visible_on_white(color):
    r, g, b = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.75


def test_orange_of_the_clip_figure_is_where_the_objective_is_flat():
    fig, axes = plt.subplots(2, 1)
    clip_cases(axes, lambda rho, a: min(rho * a, min(max(rho, 0.8), 1.2) * a))
    for ax in axes:
        orange = next(line for line in ax.get_lines() if line.get_color() == ORANGE)
        assert len(orange.get_xdata()) > 50 and len(set(orange.get_ydata())) == 1
    assert min(axes[0].get_lines()[2].get_xdata()) > 1.2 and max(axes[1].get_lines()[2].get_xdata()) < 0.8
    plt.close(fig)


def test_token_map_has_a_cell_for_each_token_and_none_behind_the_end():
    fig, ax = plt.subplots()
    token_map(ax, [["1", "$", "■"], ["长标签", "■"]], [[-0.5, -1.0, 0.0], [-2.0, -0.1]], columns=3)
    cells = ax.get_images()[0].get_array()
    assert cells.shape == (2, 3) and cells[0].tolist() == [0.5, 1.0, 0.0]
    assert bool(cells.mask[1, 2]) and [t.get_text() for t in ax.texts] == ["1", r"\$", "■", "■"]
    plt.close(fig)
