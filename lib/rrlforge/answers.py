r"""Read the final answer out of a completion, and compare it with the gold answer.

The rule, in order; the first mark found decides, even if it says nothing readable:

0. What stands in <think>...</think> is no answer; text that never leaves its <think>
   has none.
1. The last \boxed{...}. A box that never closes (cut off at the length limit) is no
   answer.
2. The number right behind the last "####". A heading like "#### Step 2" is no mark.
3. The number behind the last "answer is", "answer:", "<answer>", 答案是, 答案为, 答案：.
4. No mark at all: the last number in the text; `16 - 3 - 4 = 9, 9 * 2 = 18` says 18.

An answer is one number. Where it is a calculation, that number stands behind the
last "=". What is not plainly one number is never evaluated nor cut to its first
part: several numbers (`12, 13`, `12 or 13`, `3 + 4`, `5 hours 30 minutes`), powers
(`2^{10}`, `1e3`, `1.5 \times 10^3`), roots, `12!` and any LaTeX command but those of
COMMANDS. "hundred", "million", 千, 万 and the like are multiplied out. Units, text,
currency and percent signs fall away: 50% reads as 50. In prose a "!" ends a
sentence: `The answer is 12!` says 12. A comma or one space groups thousands only
before exactly three digits; other groups (`1,00,000`) are none. A number longer than
MAX_CHARS is no answer.

Reading takes time linear in the text: marks are found by plain search, and the
regular expressions that could backtrack only ever see LONGEST characters.
"""
import math
import re
import unicodedata
from fractions import Fraction

MAX_CHARS = 2000            # of one number; below Python's limit of 4300 digits for int()
LONGEST = 2 * MAX_CHARS     # characters read of a box, or around a mark
TRIES = 8                   # how many "####" (or "answer") to try, from the last one back
VULGAR = "½¼¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
DIGITS = "0123456789０１２３４５６７８９" + VULGAR
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
          "百": 100, "千": 10**3, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
UNKNOWN = "\ufffd"          # stands for a LaTeX command or a sign that is not read

FOLD = str.maketrans(
    {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}             # full-width forms: ４２，．－＄／：
    | dict.fromkeys("−–‐‑﹣", "-") | dict.fromkeys("\u2009\u202f\u00a0~", "\u2009")
    | {c: " " + unicodedata.normalize("NFKC", c).replace("⁄", "/") for c in VULGAR}
    | {c: "^" + unicodedata.normalize("NFKC", c) for c in "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"}
    | dict.fromkeys("≠⌊⌋⌈⌉∛∜∑∏∫", UNKNOWN) | dict(zip("￥⁄’≈≥≤\u3000", "¥/'=>< ")))

# The LaTeX commands that are read, and as what; any other becomes UNKNOWN.
COMMANDS = {c: c for c in "$%#&_()[]"} | {name: new for new, names in {
    " ": ", ; : { } quad qquad", "=": "approx implies Rightarrow rightarrow to", "…": "dots ldots cdots",
    "": "! text textbf textit textrm texttt emph underline mbox boxed mathrm mathbf mathit "
        "mathsf boldsymbol bf rm left right big Big displaystyle large Large therefore square checkmark",
    "$": "dollar textdollar pounds euro yen", "°": "circ degree", "<": "lt le leq", ">": "gt ge geq",
    "×": "times cdot", "÷": "div", "√": "sqrt", "π": "pi", "±": "pm mp", "∞": "infty", "\n": "\\ newline",
}.items() for name in names.split()} | {" ": " ", "\n": " ", "": ""}

GAP = r"(?:\\[,;: ]|\{,\}|[ \u2009])"
PART = r" *(?:\{ *(-? ?[^{} ]+) *\}|(\d))"                          # of a fraction

# LaTeX and typography -> plain text, in this order.
REWRITES = [(re.compile(pattern), new) for pattern, new in [
    (r"\\!", ""),                                                   # 1,\!234
    (rf"(?<!\d)\d{{1,3}}(?:{GAP}\d{{3}})++(?!\d)",                  # 1\,234  1{,}234  1 234
     lambda match: re.sub(GAP, ",", match[0])),
    (r"\\(?:begin|end)\{[a-z]+\*?\}", "\n"),
    (r"(?<=\d)(?=\\[dtc]?frac)", " "),                              # 2\frac{1}{2} is a mixed number
    (rf"\\[dtc]?frac{PART}{PART}", r"\1\2/\3\4 "),
    (r"\\([a-zA-Z]+|[\s\S]|\Z)", lambda match: COMMANDS.get(match[1], UNKNOWN)),
    (r"!=", UNKNOWN), (r"([<>])=", r"\1"),
    (r"[{}]", ""),
    (r"\^ ?°", "°"),
    (r"[ \t\u2009]+", " "),
    (r"(?<=[A-Za-z米])\^-?\d", ""),                                 # the 2 of m^2
    (r"\b(?:[Nn]egative|[Mm]inus) ?(?=[\d$])|负 ?(?=[\d$])", "-"),
    (r"([-+]) ?[$€£¥₹] ?", r"\1"),                                  # -$3
    (r" ?[$€£¥₹%] ?", " "),
    (r"(?<!\d)\*\*|\*\*(?!\d)|__", ""),                             # **42**
    (r"(?<=\d) ?/ ?(?=-?\d)", "/"),
    (r"(^|[=:(]) *- (?=[\d.])", r"\1 -"),
]]

PLAIN = r"(?:\d{1,3}(?:,\d{3})++|\d++)(?:\.\d++)?(?![.,]?\d)|\.\d++"  # 1,234.5  .5
NUMBER = re.compile(                                                # possessive ++: no backtracking
    r"(?:(?<![-+A-Za-z\d)\]^/])(?<![-+\d)\]] )([-+])"               # a sign, not the minus of 16 - 3
    r"|(?<![A-Za-z\d^/_])(?<!\d[.,]))"                              # or no sign; not the 2 of H2O
    r"(?:(\d++) (?=\d++/\d))?"                                      # the 2 of 2 1/2
    rf"({PLAIN})(?:/(-?(?:{PLAIN})))?"
    r"(?![eE][-+]?\d|/-?\d)"                                        # not 1e3, 9/11/2001
    r"((?:[ -]?(?i:hundred|thousand|million|billion|trillion)s?(?![A-Za-z])"
    r"| ?(?:[万萬亿億]|百(?!分)|千(?![克米瓦卡焦赫帕伏升]))){0,3})", re.ASCII)

UNITS = (r"(?:years?|months?|weeks?|days?|hours?|hrs?|h|minutes?|mins?|feet|foot|ft|yards?|pounds?|lbs?"
         r"|dollars?|degrees?|k?m|kg|个?月|小?时|年|周|天|分钟?|元|块|公?里|千?米|公?斤|千克|吨|度)(?:,? )?(?:and )?")
WORDS = (r"(?:or|and|to|through|plus|minus|times|divided by|remainder|[rR]|或者?|和|与|及|到|至|又|加|减|乘以?|除以?|余)"
         r"(?![A-Za-z]) ?(?:(?:maybe|perhaps|possibly|about|also|not) |是)?")

# What stands right before or behind a number that is only part of something larger.
BEFORE = re.compile("(?:" + "|".join([
    rf"[\^_√±{UNKNOWN}] ?[(\[]?", r"[/|]", r"[-+] ?[-+]",           # √2  |-5|  --3
    r"[A-Za-z]\(", r"(?<![A-Za-z])(?:sqrt|log|ln|sin|cos|tan|exp) ?",
    r"[百千万萬亿億零] ?", r"(?:hundred|thousand|million|billion|trillion)s? (?:and )?",    # 2亿3000
    rf"\d ?{UNITS}", r"\d[°'\"′″] ?",                               # 5 hours 30  5'6
]) + r")-?\Z")
BEHIND = re.compile(r"(?<=\d)[aiI](?![A-Za-z])|(?<=\d)\)?\(\d|[ )\]°'\"′″]*+(?:" + "|".join([
    rf"\.?[√π±∞^_×÷~!{UNKNOWN}]", r"\d", r":\d", r"\.\(\d",         # 2^3  12!  12 13  12:30  0.(3)
    rf"[-+*/<>|&,;、] ?[-+(]*[.]?[\d√π{UNKNOWN}]",                  # 12, 13  3 + 4
    r"\.? ?= ?\.?\d", r"\([^()\n]*\) ?=", r"[A-Za-z]+ ?[-+*/×÷=^] ?\(?\.?\d",      # 3 eggs * 4
    r"[-+*/] ?[bcnpqrt-z](?![A-Za-z])", r"[,;、]? ?(?:and|or|和|或)? ?[A-Za-z] ?=",  # 5/x  x = 5, y = 6
    rf"[,;、(]? ?{WORDS}[-+]?\.?\d", rf"{UNITS}\d", r"and (?:an? |one |half )(?:half|quarter|third)",
    r"[^\s\d.,;:()。]{1,15}(?:,? (?:and|or) |和|或)\.?\d",         # 12 boys and 13 girls
    r"(?:[befjknoqruvwxyzBKMT]|mn|bn|mil|lakhs?|crores?|(?:ten|hundred|thousand)ths?|squared)(?![A-Za-z])",
    r"[万萬亿億兆零多余]|分之|[个小时天年倍点斤米月元块]{0,2}半",
]) + ")", re.ASCII)
BESIDE = re.compile(                                                # what may share a box with the number
    r"(?:[^\W\d_π]|(?<=[A-Za-z])\d|[\s.,:;()\[\]'\"°′″/?!&#`]|-(?=[A-Za-z]{2}))*+")
LISTED = re.compile(r"[;、]|,(?!\d)|(?<![A-Za-z])(?:and|or)(?![A-Za-z])|[和或]")

STARTS = rf"(?=[-+]{{0,2}} ?(?:\.?\d|{UNKNOWN}?[√π±∞]|{UNKNOWN} ?\(?\.?\d))"
LEAD = (                                                            # `x = `, `9 * 2 = `
    rf"[\s*(\[:=`]{{0,99}}+(?:[A-Za-z] ?= ?)?{STARTS}"
    rf"(?:(?:[-+*/x×÷:^=√π!){UNKNOWN}\d ]|[.,](?=\d)|(?<!\d)(?<!\d )\(){{0,500}}=[ (*]*+{STARTS})?")

# mark, what leads from the mark to its number, and how text looks that was cut off in between
MARKS = [(mark, re.compile(lead), re.compile(cut)) for mark, lead, cut in [
    ("####", LEAD, r"[\s*$]*+\Z"),
    ("answer", rf"[^\n.。]{{0,40}}?(?:\bis\b|[:=>为是于]){LEAD}", r"\s*+(?:is|[:：是为])[\s*$]*+\Z"),
]]
EXCLAMATION = re.compile(r"!+(?! ?[-+*/×÷=^\d(])")


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
            plain = prose(after[:LONGEST])
            if found := lead.match(plain):
                return canonical(NUMBER.match(plain, found.end()))
        if after_marks and cut.match(after_marks[-1]):
            return None
    last = max(map(text.rfind, DIGITS))
    near = prose(text[max(0, last - LONGEST):last + 20])
    *_, number = None, *NUMBER.finditer(near)
    # a digit that was not read makes the whole unread; the 2 of H2O is no number
    unread = number and re.search(r"(?<![A-Za-z\d_])\d", near[number.end():])
    return None if unread else canonical(number)


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
    """LaTeX, full-width forms and currency written as plain text, as far as numbers need it."""
    text = text.translate(FOLD)
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    return text


def prose(text: str) -> str:
    """`to_plain`, where a "!" that ends a sentence is a full stop and no factorial."""
    return EXCLAMATION.sub(".", to_plain(text))


def one_number(text: str) -> str | None:
    """The number of `text`, behind its last "="; None if anything but words and units stands beside it."""
    *before, side = [side for side in text.split("=") if re.search(r"\d", side)] or [""]
    if any(map(LISTED.search, before)) or not (number := NUMBER.search(side)):
        return None
    beside = side[:number.start()], side[number.end():]
    return canonical(number) if all(map(BESIDE.fullmatch, beside)) else None


def canonical(number: re.Match | None) -> str | None:
    """One spelling of a match of NUMBER; None if it is part of more, too long, or divides by zero."""
    if not number:
        return None
    text, (begin, end) = number.string, number.span()
    if end - begin > MAX_CHARS or BEFORE.search(text[max(0, begin - 20):begin]) or BEHIND.match(text, end):
        return None
    sign, whole, top, bottom, scale = (group and group.replace(",", "") for group in number.groups())
    if bottom and not Fraction(bottom):
        return None
    scale = math.prod(SCALES[word] for word in re.findall("|".join(SCALES), scale.lower()))
    value = (Fraction(whole or 0) + Fraction(top) / Fraction(bottom or 1)) * scale
    if value.denominator == 1 or bottom or scale > 1:
        return str(-value if sign == "-" else value)
    before, after = top.split(".")
    return f"{'-' if sign == '-' else ''}{before.lstrip('0') or '0'}.{after.rstrip('0')}"
