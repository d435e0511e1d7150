// Quizzes and progress: the same file runs in the built book and in JupyterLab.
(function () {
  "use strict";
  const KEY = "rrlforge-progress-v1";
  const read = () => { try { return JSON.parse(localStorage.getItem(KEY)) || {}; } catch (e) { return {}; } };
  const write = (p) => { try { localStorage.setItem(KEY, JSON.stringify(p)); } catch (e) { /* private window: nothing kept */ } };

  function keep(form, passed) {
    const p = read(), id = form.dataset.id, old = p[id] || {};
    p[id] = { passed: passed || !!old.passed, tries: (old.tries || 0) + 1 };
    const quiz = form.closest(".rf-quiz"), lesson = quiz.dataset.lesson;
    if (quiz.dataset.questions.split(" ").every((q) => (p[q] || {}).passed)) p[lesson] = { passed: true };
    write(p);
    showProgress();
  }

  function judgeChoices(form) {
    const boxes = [...form.querySelectorAll("input")];
    if (!boxes.some((b) => b.checked)) return null;
    const passed = boxes.every((b) => b.checked === (b.dataset.right === "1"));
    boxes.forEach((b) => {
      const row = b.closest("li"), right = b.dataset.right === "1";
      row.classList.toggle("rf-right", b.checked && right);
      row.classList.toggle("rf-wrong", b.checked && !right);
      row.querySelector(".rf-why").hidden = !(b.checked || passed);
    });
    return passed;
  }

  function judgeNumber(form) {
    const box = form.querySelector("input"), text = box.value.trim().replace(/[，,]/g, "").replace("−", "-");
    if (text === "" || Number.isNaN(Number(text))) return null;
    const passed = Math.abs(Number(text) - Number(box.dataset.value)) <= Number(box.dataset.tolerance);
    form.querySelector(".rf-why").hidden = !passed;
    return passed;
  }

  function message(form, passed) {
    if (passed === null) return form.dataset.kind === "numeric" ? "请先填一个数。" : "请先选择。";
    if (passed) return "✓ 回答正确";
    if (form.dataset.kind === "multiple" && !form.querySelector(".rf-wrong")) return "选中的都对，但还没选全。";
    return form.dataset.kind === "numeric" ? "✗ 还不对，再算一次。" : "✗ 还不对，看完解释再试一次。";
  }

  function bind(form) {
    if (form.dataset.bound) return;
    form.dataset.bound = "1";
    const out = form.querySelector("output");
    if ((read()[form.dataset.id] || {}).passed) { form.dataset.state = "passed"; out.textContent = "✓ 以前答对过"; }
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const passed = form.dataset.kind === "numeric" ? judgeNumber(form) : judgeChoices(form);
      out.textContent = message(form, passed);
      if (passed === null) return;
      form.dataset.state = passed ? "passed" : "failed";
      keep(form, passed);
    });
  }

  function showProgress() {
    const p = read();
    document.querySelectorAll("[class*='rf-lesson-']").forEach((e) => {
      const id = [...e.classList].find((c) => c.startsWith("rf-lesson-")).slice("rf-lesson-".length);
      e.classList.toggle("rf-done", !!(p[id] || {}).passed);
    });
    document.querySelectorAll(".rf-count").forEach((e) => {
      const items = [...e.closest(".rf-progress").querySelectorAll("[class*='rf-lesson-']")];
      e.textContent = "已完成 " + items.filter((i) => i.classList.contains("rf-done")).length + "/" + items.length;
    });
  }

  function start() { document.querySelectorAll("form.rf-question").forEach(bind); showProgress(); }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
  setTimeout(start, 300); // JupyterLab may attach the output after its script has run
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
  if (new URLSearchParams(location.search).has("highlight") && window.SphinxHighlight)
    addEventListener("DOMContentLoaded", () => window.SphinxHighlight.highlightSearchWords());
})();
