"""Translate formulas written in a small subset of Python into JavaScript: one source, two readers.

The subset: functions of numbers, strings and flat dicts; assignments, augmented assignments, if, while, return;
arithmetic, comparisons, and/or/not, conditional expressions, s["key"], f(s)["key"], {**s, "key": value}, and a few of math's
functions. What is outside it raises `ForgeError` naming function, line and code, so a formula that cannot be shown
on the page fails when it is built.

Where the languages differ, the subset is narrower: numbers are doubles in JavaScript, so stay below 2**53; `and`,
`or` and `if` take comparisons or the numbers 0 and 1; `%` and `//` are for operands that are not negative; a loop
stops after `LOOPS` rounds in JavaScript, so a page cannot hang.
"""
from __future__ import annotations

import ast
import html
import inspect
import json
import textwrap
from collections.abc import Callable

from rrlforge.errors import ForgeError

ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%"}
COMPARISON = {ast.Eq: "===", ast.NotEq: "!==", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
CALLS = {"math.ceil": "Math.ceil", "math.floor": "Math.floor", "math.sqrt": "Math.sqrt", "math.log2": "Math.log2",
         "math.log": "Math.log", "math.exp": "Math.exp", "max": "Math.max", "min": "Math.min", "abs": "Math.abs"}
RESERVED = set("var let const function new delete this typeof void in of with switch case default do throw catch "
               "class enum export extends import super null true false undefined NaN Infinity Math Object eval arguments "
               "interface package private protected public static yield await instanceof".split())
LOOPS = 100_000


def to_js(*functions: Callable, constants: dict[str, float | str] | None = None) -> str:
    """JavaScript of `functions`, which may call each other and read `constants`. `ForgeError` for code outside the subset."""
    names = {f.__name__ for f in functions}
    head = [f"const {_name(name, 'constants')} = {_constant(value, name)};" for name, value in (constants or {}).items()]
    return "\n".join([*head, *(_Function(f, names, set(constants or {})).translate() for f in functions)])


def _constant(value, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 2**53:
        raise ForgeError(f"tojs: {where}: {value} has no exact double")
    if isinstance(value, int | float) and value == value and abs(value) != float("inf"):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value).replace("</", "<\\/")
    raise ForgeError(f"tojs: {where}: {value!r} has no JavaScript here; use numbers and strings")


def _name(name: str, where: str) -> str:
    if not name.isascii() or name in RESERVED:
        raise ForgeError(f"tojs: {where}: the name {name!r} means something else in JavaScript; choose another")
    return name


class _Function:
    """One function on its way into JavaScript."""

    def __init__(self, function: Callable, names: set[str], constants: set[str]):
        self.names, self.constants, self.loops = names, constants, 0
        try:
            source = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError) as error:
            raise ForgeError(f"tojs: {function!r} has no source to translate") from error
        self.tree = ast.parse(source).body[0]
        if not isinstance(self.tree, ast.FunctionDef) or self.tree.decorator_list:
            raise ForgeError(f"tojs: {function!r}: only plain functions are translated")
        a = self.tree.args
        if a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs or a.defaults:
            raise ForgeError(f"tojs: {function.__name__}: only plain arguments without defaults are translated")
        self.arguments = [self.name(one.arg) for one in a.args]
        self.known = {*self.arguments}
        self.assigned = sorted({self.name(n.id) for n in ast.walk(self.tree)
                                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)})
        if clash := set(self.assigned) & (self.constants | self.names):
            raise ForgeError(f"tojs: {function.__name__}: {', '.join(clash)} is assigned and is a constant or function too")

    def name(self, name: str) -> str:
        return _name(name, self.tree.name)

    def refuse(self, node) -> ForgeError:
        return ForgeError(f"tojs: {self.tree.name}, line {getattr(node, 'lineno', '?')}: {ast.unparse(node)!r} is outside the subset")

    def translate(self) -> str:
        declared = [v for v in self.assigned if v not in self.arguments]
        first = [f"  let {', '.join(declared)};"] if declared else []
        body = self.block(self.tree.body, "  ")
        return "\n".join([f"function {self.tree.name}({', '.join(self.arguments)}) {{", *first, *body, "}"])

    def block(self, statements, indent: str) -> list[str]:
        return [line for one in statements for line in self.statement(one, indent)]

    def statement(self, node, indent: str) -> list[str]:
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                return []
            case ast.Return(value=value) if value is not None:
                return [f"{indent}return {self.expression(value)};"]
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                line = f"{indent}{target} = {self.expression(value)};"
                self.known.add(target)
                return [line]
            case ast.AugAssign(target=ast.Name(id=target), op=operator, value=value):
                changed = ast.BinOp(left=ast.Name(id=target, ctx=ast.Load()), op=operator, right=value, lineno=node.lineno)
                return [f"{indent}{target} = {self.expression(changed)};"]
            case ast.If(test=test, body=body, orelse=other):
                lines = [f"{indent}if ({self.expression(test)}) {{", *self.block(body, indent + "  "), f"{indent}}}"]
                return lines + ([f"{indent}else {{", *self.block(other, indent + "  "), f"{indent}}}"] if other else [])
            case ast.While(test=test, body=body, orelse=[]):
                self.loops += 1
                count = f"loop_{self.loops}"
                return [f"{indent}for (let {count} = 0; ({self.expression(test)}) && {count} < {LOOPS}; {count}++) {{",
                        *self.block(body, indent + "  "), f"{indent}}}"]
        raise self.refuse(node)

    def expression(self, node) -> str:
        e = self.expression
        match node:
            case ast.Constant(value=value):
                return _constant(value, f"{self.tree.name}, line {node.lineno}")
            case ast.Name(id=name):
                if name not in self.known | self.constants:
                    raise ForgeError(f"tojs: {self.tree.name}, line {node.lineno}: {name} is not an argument, constant or earlier variable")
                return name
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                return f"Math.pow({e(left)}, {e(right)})"
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return f"Math.floor({e(left)} / {e(right)})"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
                return f"({e(left)} {ARITHMETIC[type(operator)]} {e(right)})"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"(-{e(operand)})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"(!{e(operand)})"
            case ast.BoolOp(op=operator, values=values):
                return "(" + (" && " if isinstance(operator, ast.And) else " || ").join(map(e, values)) + ")"
            case ast.Compare(left=left, ops=operators, comparators=right) if all(type(o) in COMPARISON for o in operators):
                sides = [left, *right]
                parts = [f"({e(a)} {COMPARISON[type(o)]} {e(b)})" for a, o, b in zip(sides, operators, right)]
                return parts[0] if len(parts) == 1 else "(" + " && ".join(parts) + ")"
            case ast.IfExp(test=test, body=body, orelse=other):
                return f"({e(test)} ? {e(body)} : {e(other)})"
            case ast.Subscript(value=ast.Name() | ast.Call() as value, slice=ast.Constant(value=str() as key)):
                return f"{e(value)}[{_constant(key, self.tree.name)}]"
            case ast.Dict(keys=keys, values=values):
                parts = [f"...{e(v)}" if k is None else f"{_constant(k.value, self.tree.name)}: {e(v)}"
                         for k, v in zip(keys, values) if k is None or isinstance(k, ast.Constant)]
                if len(parts) == len(keys):
                    return "({" + ", ".join(parts) + "})"
            case ast.Call(func=function, args=arguments, keywords=[]):
                called = ast.unparse(function)
                if called in CALLS or called in self.names:
                    return f"{CALLS.get(called, called)}({', '.join(map(e, arguments))})"
        raise self.refuse(node)


# ---------------------------------------------------------------- the form around translated formulas

def form_html(spec: dict, javascript: str, css: str, binder: str) -> str:
    """HTML of a calculator: a form for `spec`, the formulas, the script that draws (data/calculator.js).

    spec: title, unit, main (the formula whose dict is drawn), functions (those the page calls), fields, blocks
    [{key, label, color}], and, if wanted, limit and taken (fields: size of the card, what of it is gone), verdict, moments,
    notes. A field has name and label, and options [{text, value}] (a value that is a dict fills several names), or a
    boolean value, or a value with low, high and whole.
    """
    boxes = "".join(_box(f) for f in spec["fields"])
    data = json.dumps(spec, ensure_ascii=False).replace("</", "<\\/")
    return (f'<form class="rf-calc tex2jax_ignore mathjax_ignore"><strong class="rf-calc-title">{html.escape(spec["title"])}</strong>'
            f'<div class="rf-calc-fields">{boxes}</div><p class="rf-calc-error" role="alert"></p>'
            f'<div class="rf-calc-result" role="status"></div><noscript>这个计算器要开 JavaScript。</noscript>'
            f'<script type="application/json" class="rf-calc-spec">{data}</script>'
            f'<script type="text/plain" class="rf-calc-js">{javascript}</script></form>'
            f"<style>{css}</style><script>{binder}</script>")


def _box(field: dict) -> str:
    name, label, value = html.escape(field["name"]), html.escape(field["label"]), field.get("value")
    if "options" in field:
        options = "".join(f"<option{' selected' if o['value'] == value else ''}>{html.escape(o['text'])}</option>" for o in field["options"])
        return f'<label>{label}<select name="{name}">{options}</select></label>'
    if isinstance(value, bool):
        return f'<label class="rf-calc-check"><input type="checkbox" name="{name}"{" checked" if value else ""}>{label}</label>'
    return (f'<label>{label}<input type="number" name="{name}" value="{value}" min="{field["low"]}" max="{field["high"]}" '
            f'step="{1 if field.get("whole") else "any"}" inputmode="decimal"></label>')
