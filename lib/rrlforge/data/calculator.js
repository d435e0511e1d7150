// Calculators: formulas translated from Python, a form, bars. The same file runs in the built book and in JupyterLab.
(function () {
  "use strict";
  const make = (tag, className, text) => {
    const e = document.createElement(tag);
    if (className) e.className = className;
    if (text !== undefined) e.textContent = text;
    return e;
  };

  // what the form says, as the flat object that the formulas take; a message where a number is out of its range
  function values(form, spec) {
    const s = {};
    for (const f of spec.fields) {
      const box = form.elements.namedItem(f.name); // elements.length is a number
      if (f.options) {
        const chosen = f.options[box.selectedIndex];
        if (typeof chosen.value === "object") Object.assign(s, chosen.value); else s[f.name] = chosen.value;
      } else if (typeof f.value === "boolean") {
        s[f.name] = box.checked ? 1 : 0;
      } else {
        const v = box.value.trim() === "" ? NaN : Number(box.value);
        const whole = !f.whole || Number.isInteger(v);
        if (!(v >= f.low && v <= f.high) || !whole) return { message: "「" + f.label + "」要在 " + f.low + " 到 " + f.high + " 之间" + (f.whole ? "，取整数" : "") + "。" };
        s[f.name] = v;
      }
    }
    return { s };
  }

  function note(line, s, api, found) {
    const v = line.call ? api[line.call](s) : found[line.key];
    if (line.texts) return line.texts[v] ? line.text.replace("{}", line.texts[v]) : "";
    if (line.positive && !(v > 0)) return line.otherwise || "";
    return line.text.replace("{}", v.toFixed(line.digits || 0));
  }

  function draw(out, spec, s, api) {
    const found = api[spec.main](s), limit = spec.limit ? s[spec.limit] - (spec.taken ? s[spec.taken] : 0) : 0;
    const blocks = spec.blocks.filter((b) => found[b.key] > 0);
    const total = blocks.reduce((sum, b) => sum + found[b.key], 0), width = Math.max(total, limit);
    out.replaceChildren();
    if (spec.verdict) out.append(make("p", "rf-calc-verdict", spec.verdict.texts[api[spec.verdict.call](s)] + "：要 " + total.toFixed(1) + " / " + limit.toFixed(1) + " " + spec.unit));
    const stack = make("div", "rf-calc-stack");
    stack.setAttribute("aria-hidden", "true");
    for (const b of blocks) {
      const part = make("span");
      part.style.width = 100 * found[b.key] / width + "%"; part.style.background = b.color; part.title = b.label + " " + found[b.key].toFixed(2);
      stack.append(part);
    }
    if (limit && limit < width) { const line = make("i"); line.style.left = 100 * limit / width + "%"; stack.append(line); }
    out.append(stack);
    if (limit && limit < width) out.append(make("p", "rf-calc-limit", "虚线是这张卡的 " + limit.toFixed(1) + " " + spec.unit + "，右边的放不下。"));
    const largest = Math.max(...blocks.map((b) => found[b.key])), bars = make("dl", "rf-calc-bars");
    for (const b of blocks) {
      const name = spec.moments && b.key === spec.moments.block ? b.label + "（" + spec.moments.texts[found[spec.moments.key]] + "）" : b.label;
      const cell = make("dd"), bar = make("div", "rf-calc-bar");
      bar.style.width = 100 * found[b.key] / largest + "%"; bar.style.background = b.color;
      cell.append(bar);
      bars.append(make("dt", "", name), cell, make("dd", "rf-calc-value", found[b.key].toFixed(2)));
    }
    out.append(bars);
    const notes = make("ul", "rf-calc-notes");
    for (const line of spec.notes || []) { const text = note(line, s, api, found); if (text) notes.append(make("li", "", text)); }
    out.append(notes);
  }

  function bind(form) {
    if (form.dataset.bound) return;
    form.dataset.bound = "1";
    const spec = JSON.parse(form.querySelector(".rf-calc-spec").textContent);
    const api = new Function(form.querySelector(".rf-calc-js").textContent + "\nreturn {" + spec.functions.join(", ") + "};")();
    const out = form.querySelector(".rf-calc-result"), error = form.querySelector(".rf-calc-error");
    form.rfApi = api; // for the tests
    const go = () => {
      const got = values(form, spec);
      form.dataset.state = got.s ? "ok" : "error";
      error.textContent = got.message || "";
      if (got.s) { form.rfValues = got.s; draw(out, spec, got.s, api); }
    };
    form.addEventListener("input", go);
    form.addEventListener("submit", (event) => event.preventDefault());
    go();
  }

  function start() { document.querySelectorAll("form.rf-calc").forEach(bind); }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
  setTimeout(start, 300); // JupyterLab may attach the output after its script has run
})();
