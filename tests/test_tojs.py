"""The translator: what it takes means the same in Python and JavaScript, what it does not take is refused in one line."""
import json
import math
import random
import shutil
import subprocess

import pytest

from rrlforge import tojs, vram
from rrlforge.errors import ForgeError

NODE = shutil.which("node")
HALF = 0.5


def run_js(code: str, calls: list) -> list:
    """Results of calls [[name, [arguments]]] in node, or in Chromium where there is no node."""
    ask = "calls.map(([name, args]) => api[name](...args))"
    names = sorted({name for name, _ in calls})
    head = f"{code}\nconst api = {{{', '.join(names)}}};"
    if NODE:
        program = f"{head}\nconst calls = JSON.parse(require('fs').readFileSync(0));\nconsole.log(JSON.stringify({ask}));"
        done = subprocess.run([NODE, "-e", program], input=json.dumps(calls), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("neither node nor chromium on PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        try:
            return browser.new_page().evaluate(f"(calls) => {{ {head}\nreturn {ask}; }}", calls)
        finally:
            browser.close()


def collatz(n):
    steps = 0
    while n != 1 and steps < 1000:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def mixed(s, x):
    """Docstring, and everything else of the subset."""
    y = -x if s["kind"] == "minus" else x ** 2
    inside = 0 < x <= 3 and not s["flag"] == 1
    t = {**s, "x": y, "inside": 1 if inside else 0}
    return {"x": t["x"], "inside": t["inside"], "n": max(math.floor(x), collatz(t["n"]), 2), "half": HALF * math.sqrt(abs(x)) + x / 3}


def test_the_subset_means_the_same_in_both_languages():
    rng, js = random.Random(0), tojs.to_js(collatz, mixed, constants={"HALF": HALF})
    calls = [["mixed", [{"kind": rng.choice(["minus", "sq</script>"]), "flag": rng.randint(0, 1), "n": rng.randint(1, 999)},
                        rng.uniform(-5, 5)]] for _ in range(500)]
    for (_, arguments), found in zip(calls, run_js(js, calls)):
        assert found == pytest.approx(mixed(*arguments), rel=1e-12)


def random_plan(rng: random.Random) -> dict:
    shape = rng.choice(list(vram.SHAPES.values()))
    length = rng.choice([16, 500, 512, 1024, 2048, 4096, 32768])
    return vram.Plan(shape, rng.choice(vram.METHODS), length, rng.randint(16, 70000), rng.random() < 0.5, rng.choice([1, 256, 512, 4096]),
                     rng.randint(1, 256), rng.choice(vram.OPTIMIZERS), rng.random() < 0.3, rng.choice([0, 2.5, 8, 8.0, 16.3]),
                     rng.choice([2, 0.55]), rng.random() < 0.2, rng.choice([11.6, 23.4, 31.36, 139.8]), rng.uniform(0, 4)).flat()


def test_the_ledger_is_the_same_in_both_languages_on_thousands_of_plans():
    rng = random.Random(1)
    plans = [random_plan(rng) for _ in range(3000)]
    for name, count in (("ledger", 3000), ("verdict", 3000), ("parameters", 3000), ("most_rows", 300), ("longest_row", 300), ("first_turn", 1000)):
        function = getattr(vram, name)
        found = run_js(vram.javascript(), [[name, [s]] for s in plans[:count]])
        for s, got in zip(plans, found):
            assert close(got, function(s)), s


def close(got, want) -> bool:
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(close(got[k], want[k]) for k in want)
    return got == (want if isinstance(want, str) else pytest.approx(want, rel=1e-12, abs=1e-12))


def loops(n):
    for i in range(n):
        n += i
    return n


def calls_out(n):
    return print(n)


def unknown(n):
    return n + somewhere  # noqa: F821


def reserved(new):
    return new


def defaulted(n=1):
    return n


def huge(n):
    return n + 2**53 * 9007199254740993


def attribute(n):
    return n.real


@pytest.mark.parametrize("function,message", [
    (loops, "for i in range(n)"), (calls_out, "'print(n)' is outside the subset"), (unknown, "somewhere is not an argument"),
    (reserved, "'new' means something else"), (defaulted, "without defaults"), (huge, "no exact double"), (attribute, "'n.real' is outside"),
    (len, "has no source"), (lambda n: n, "only plain functions"),
])
def test_code_outside_the_subset_is_refused_in_one_line(function, message):
    with pytest.raises(ForgeError, match="^tojs: ") as error:
        tojs.to_js(function)
    assert message in str(error.value)


def test_a_loop_without_end_ends_in_the_page():
    js = tojs.to_js(forever)
    assert run_js(js, [["forever", [1]]]) == [tojs.LOOPS + 1]


def forever(n):
    while n > 0:
        n += 1
    return n


def test_the_form_carries_formulas_and_texts_without_breaking_the_page():
    spec = {"title": "<b>", "unit": "GiB", "main": "f", "functions": ["f"], "blocks": [], "fields": [
        {"name": "a", "label": "</script>", "value": 1, "low": 0, "high": 2, "whole": True}, {"name": "b", "label": "b", "value": True},
        {"name": "c", "label": "c", "options": [{"text": "<x>", "value": {"d": 1}}]}]}
    page = tojs.form_html(spec, "function f(s) { return {}; }", ".x{}", "0;")
    assert page.count("<script") == page.count("</script>") == 3 and "&lt;b&gt;" in page and "<x>" not in page.split("<script")[0]
