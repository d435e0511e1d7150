() => {
  // Texts of the page whose contrast with the ground behind them is under 3:1 (WCAG relative luminance).
  const linear = (x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const rgba = (text) => {
    const found = text.match(/^rgba?\(([^)]+)\)/);
    return found && found[1].split(/[ ,/]+/).map(Number);
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour && (colour[3] === undefined || colour[3] > 0.5)) return colour;
    }
    return [255, 255, 255];
  };
  const tags = ["p", "li", "pre", "legend", "label", "button", "figcaption", "td", "th", "output"];
  return [...document.querySelectorAll(tags.map((t) => "article " + t).join())]
    .filter((e) => (e.innerText || "").trim() && e.checkVisibility())
    .filter((e) => {
      const a = luminance(rgba(getComputedStyle(e).color)), b = luminance(ground(e));
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 3;
    })
    .map((e) => e.innerText.trim().slice(0, 40));
}
