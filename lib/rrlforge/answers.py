r"""Read the final answer out of a completion, and compare it with the gold answer.

The rule, in order; the first mark found decides, even if it says nothing readable:

0. What stands in <think>...</think> is no answer; text that never leaves its <think>
   has none.
1. The last \boxed{...}. A box that never closes (cut off at the length limit) is no
   answer.
2. The number right behind the last "####". A heading like "#### Step 2" is no mark.
3. The number behind the last "answer is", "answer:", "<answer>", 答案是, 答案为, 答案：.
4. No mark at all: the last number in the text; `16 - 3 - 4 = 9, 9 * 2 = 18` says 18.

A marked answer states one number. Where it is a calculation, that number stands
behind the last "="; several numbers (`\boxed{12, 13}`, `3 + 4`), powers (`2^{10}`,
`1e3`, `1.5 \times 10^3`) and roots are never evaluated: no answer. "million", 万 and
the like are multiplied out. Units, text, currency and percent signs fall away: 50%
reads as 50. A comma or one space groups thousands only before exactly three digits:
`1,234` is one number, `12, 13` are two. A number longer than MAX_CHARS is no answer.

Reading takes time linear in the text: marks are found by plain search, and the
regular expressions that could backtrack only ever see LONGEST characters.
"""
import re
from fractions import Fraction

MAX_CHARS = 2000            # of one number; below Python's limit of 4300 digits for int()
LONGEST = 2 * MAX_CHARS     # characters read of a box, or around a mark
TRIES = 8                   # how many "####" (or "answer") to try, from the last one back
DIGITS = "0123456789０１２３４５６７８９½¼¾"
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "万": 10**4, "亿": 10**8}

FOLD = str.maketrans(
    {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}             # full-width forms: ４２，．－＄／：
    | dict.fromkeys("−–‐‑﹣", "-") | dict.fromkeys("\u2009\u202f\u00a0~", "\u2009")
    | {"￥": "¥", "\u3000": " ", "½": " 1/2", "¼": " 1/4", "¾": " 3/4", "²": "^2", "³": "^3", "≈": "="})

COMPUTE = r"(?:sqrt|pi|pm|mp|log|ln|binom|infty|overline|dot|bar)(?![a-zA-Z])"    # commands never evaluated

# LaTeX and typography -> plain text, in this order.
REWRITES = [(re.compile(pattern), new) for pattern, new in [
    (r"\\([$%#&_])", r"\1"),                                        # \$ \%
    (r"\\!", ""),                                                   # 1,\!234
    (r"(?<=\d)(?:\\[,;: ]|\{,\}|[ \u2009])(?=\d{3}(?!\d))", ","),   # 1\,234  1{,}234  1 234
    (r"\\[,;: ]|\\q?quad(?![a-zA-Z])|[\t\u2009]", " "),
    (r"(?<=\d)(?=\\[dtc]?frac)", " "),                              # 2\frac{1}{2} is a mixed number
    (r"\\[dtc]?frac *(\{[^{}]*\}|\d) *(\{[^{}]*\}|\d)", r"\1/\2"),
    (r"\\(?:times|cdot)(?![a-zA-Z])", "×"),
    (r"\\div(?![a-zA-Z])", "÷"),
    (r"\\approx(?![a-zA-Z])", "="),
    (r"\^? ?\{? ?(?:\\circ|\\degree|°) ?\}?", ""),
    (rf"\\(?!{COMPUTE})[a-zA-Z]+", ""),                             # \text \mathrm \left
    (r"[{}]", ""),
    (r"  +", " "),
    (r"(?<=[A-Za-z])\^-?\d", ""),                                   # the 2 of m^2
    (r"\b(?:[Nn]egative|[Mm]inus) ?(?=[\d$])|负 ?(?=[\d$])", "-"),
    (r"([-+]) ?[$€£¥₹] ?", r"\1"),                                  # -$3
    (r" ?[$€£¥₹%] ?", " "),
    (r"(?<!\d)\*\*|\*\*(?!\d)|__", ""),                             # **42**
    (r"(?<=\d) ?/ ?(?=\d)", "/"),
    (r"(^|[=:(]) *- (?=[\d.])", r"\1 -"),
]]

PLAIN = r"(?:\d{1,3}(?:,\d{3})++(?!,?\d)|\d++)(?:\.\d++)?|\.\d++"    # 1,234.5  .5
NUMBER = (                                                          # possessive ++: no backtracking
    r"(?:(?<![A-Za-z\d)\]^/])(?<![\d)\]] )([-+])"                   # a sign, not the minus of 16 - 3
    r"|(?<![A-Za-z\d^/_])(?<!\d\.))"                                # or no sign; not the 2 of H2O
    r"(?:(\d++) (?=\d++/\d))?"                                      # the 2 of 2 1/2
    rf"({PLAIN})(?:/({PLAIN}))?"
    r"(?![eE][-+]?\d| ?\^|[./]?\d)"                                 # not 1e3, 2^10, 1.2.3, 9/11/2001
    r"(?: ?((?i:thousand|million|billion)\b|[万亿]))?")
CALCULATION = re.sub(r"\((?!\?)", "(?:", rf"({NUMBER}(?: ?[-+*/x×÷:=^] ?{NUMBER})*)")
LEAD = r"[\s*(\[:=`\\]*+(?:[A-Za-z] ?= ?)?(?=[-+.\d])"
NUMBER, CALCULATION = (re.compile(p, re.ASCII) for p in (NUMBER, CALCULATION))
NO_PLAIN_NUMBER = re.compile(r"[×÷*^√π±∞]|\\" + COMPUTE)

# mark, what leads from the mark to its number, and how text looks that was cut off in between
MARKS = [(mark, re.compile(lead), re.compile(cut)) for mark, lead, cut in [
    ("####", LEAD, r"[\s*$]*+\Z"),
    ("answer", rf"[^\n.。]{{0,40}}?(?:\bis\b|[:=>为是于]){LEAD}", r"\s*+(?:is|[:：是为])[\s*$]*+\Z"),
]]


def extract_answer(text: str) -> str | None:
    """The answer that `text` states, by the rule at the top of this file, or None.

    Returns an integer "42", "-3", a decimal "2.5" or a fraction in lowest terms
    "3/4"; "29.00" gives "29".
    """
    text = without_thinking(text)
    if text is None:
        return None
    if "\\box" in text:
        box = last_box(text)
        return one_number(to_plain(box[0])) if box else None
    for spelling in ("Answer", "ANSWER", "答案"):
        text = text.replace(spelling, "answer")
    text = re.sub("#####+", "####", text)
    for mark, lead, cut in MARKS:
        after_marks = text.rsplit(mark, TRIES)[1:]
        for after in reversed(after_marks):
            if stated := first_calculation(to_plain(after[:LONGEST]), lead):
                return one_number(stated)
        if after_marks and cut.match(after_marks[-1]):
            return None
    last = max(map(text.rfind, DIGITS))
    near = to_plain(text[max(0, last - LONGEST):last + 20])
    numbers = list(NUMBER.finditer(near))
    return canonical(numbers[-1]) if numbers else None


def is_correct(text: str, gold: str) -> bool:
    """Whether `text` states the number of `gold`, exactly (1/2 equals 0.5). No answer equals nothing."""
    answer, wanted = extract_answer(text), extract_answer(gold)
    return answer is not None and wanted is not None and Fraction(answer) == Fraction(wanted)


def without_thinking(text: str) -> str | None:
    """`text` without its <think>...</think> blocks (the first may lack its opening tag); None if unclosed."""
    *closed, rest = text.split("</think>")
    if "<think>" in rest:
        return None
    return "".join(part.partition("<think>")[0] for part in closed if "<think>" in part) + rest


def last_box(text: str) -> tuple[str, str] | None:
    r"""What stands in the last \boxed{...} and what follows it; None if there is none or it never closes."""
    at = max(0, text.rfind("\\box"))                                # also \boxe, cut off
    opening = re.match(r"\\boxed\s*\{", text[at:at + LONGEST])
    if not opening:
        return None
    begin, depth = at + opening.end(), 1
    for brace in re.finditer(r"\\.|[{}]", text[begin:begin + LONGEST]):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[begin:begin + brace.start()], text[begin + brace.end():]
    return None


def to_plain(text: str) -> str:
    """LaTeX, full-width forms and currency written as plain ASCII text, as far as numbers need it."""
    text = text.translate(FOLD)
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    return text


def first_calculation(text: str, lead: re.Pattern) -> str | None:
    """The number or calculation (`9 * 2 = 18`) that follows `lead` at the beginning of `text`."""
    found = lead.match(text)
    stated = found and CALCULATION.match(text, found.end())
    return stated[0] if stated else None


def one_number(text: str) -> str | None:
    """The number of `text`, behind its last "="; None unless there is exactly one and nothing to compute."""
    sides = [side for side in text.split("=") if re.search(r"\d", side)]
    numbers = list(NUMBER.finditer(sides[-1])) if sides else []
    if len(numbers) != 1 or NO_PLAIN_NUMBER.search(sides[-1]):
        return None
    return canonical(numbers[0])


def canonical(number: re.Match) -> str | None:
    """One spelling of a matched number; None if it is too long or divides by zero."""
    if len(number[0]) > MAX_CHARS:
        return None
    sign, whole, top, bottom, scale = (group and group.replace(",", "").lower() for group in number.groups())
    if bottom and not Fraction(bottom):
        return None
    value = (Fraction(whole or 0) + Fraction(top) / Fraction(bottom or 1)) * SCALES.get(scale, 1)
    minus = "-" if sign == "-" and value else ""
    if value.denominator == 1 or bottom or scale:
        return minus + str(value)
    before, after = top.split(".")
    return f"{minus}{before.lstrip('0') or '0'}.{after.rstrip('0')}"
