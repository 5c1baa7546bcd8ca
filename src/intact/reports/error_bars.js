"use strict";
(() => {
  const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const chart = document.getElementById("error-bars");
  const bars = Array.from(chart.querySelectorAll("g"));
  const picture = document.getElementById("histogram");
  const put = (id, text) => (document.getElementById(id).textContent = text);
  const add = (shape, values) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", shape);
    Object.entries(values).forEach(([name, value]) => made.setAttribute(name, value));
    picture.append(made);
  };
  const pair = (text) => text.split(" ").map(Number);
  let chosen = 0;

  const draw = (data) => {
    const [low, high] = pair(data.range);
    const [from, to] = data.seen ? pair(data.seen) : [low, high];
    const left = Math.min(low, from);
    const width = Math.max(high, to) - left || 1;
    const at = (value) => (100 * (value - left)) / width;
    const step = (to - from) / (data.bins.length || 1);
    picture.replaceChildren();
    add("rect", { class: "room", x: at(low), width: at(high) - at(low), y: 0, height: 100 });
    Array.from(data.bins).forEach((digit, i) => {
      const height = (92 * digits.indexOf(digit)) / (digits.length - 1);
      const middle = from + (i + 0.5) * step;
      const box = { x: at(from + i * step), width: at(from + step) - at(from), y: 100 - height, height };
      if (height > 0) add("rect", { class: middle < low || middle > high ? "cut" : "", ...box });
    });
    [low, high].forEach((end) => add("line", { x1: at(end), x2: at(end), y1: 0, y2: 100 }));
    put("tensor-ends", "");
    [left, left + width].forEach((end) => {
      const text = document.createElement("span");
      text.textContent = Number(end.toPrecision(4));
      document.getElementById("tensor-ends").append(text);
    });
    put("tensor-words", [
      "Grid: " + data.grid + " (shaded).",
      data.seen
        ? "Calibration saw " + from.toPrecision(4) + " to " + to.toPrecision(4) + ", of which the grid cuts off " + data.cut + "."
        : "Calibration did not choose this grid: its operator sets it, or a mask.",
      data.bins ? "Heights are logarithms of counts." : "",
    ].join(" "));
  };
  const choose = (i) => {
    bars[chosen].tabIndex = -1;
    bars[chosen].removeAttribute("aria-selected");
    chosen = i;
    bars[i].tabIndex = 0;
    bars[i].setAttribute("aria-selected", "true");
    put("tensor-name", bars[i].querySelector("title").textContent);
    draw(bars[i].dataset);
  };
  const go = (i) => {
    choose(Math.min(Math.max(i, 0), bars.length - 1));
    bars[chosen].focus({ preventScroll: true });
    const box = bars[chosen].getBoundingClientRect();
    const view = chart.parentElement.getBoundingClientRect();
    if (box.left < view.left || box.right > view.right) chart.parentElement.scrollLeft += box.left - view.left - view.width / 2;
  };

  chart.addEventListener("click", (event) => {
    const bar = event.target.closest("g");
    if (bar) go(bars.indexOf(bar));
  });
  chart.addEventListener("focusin", (event) => {
    const i = bars.indexOf(event.target);
    if (i >= 0 && i !== chosen) choose(i);
  });
  chart.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: bars.length - 1 };
    if (!(event.key in moves)) return;
    go(moves[event.key]);
    event.preventDefault();
  });
  document.querySelectorAll(".pick").forEach((row) => {
    row.addEventListener("click", () => {
      go(Number(row.dataset.place));
      document.getElementById("tensor").scrollIntoView({ block: "nearest" });
    });
  });
  const worst = document.querySelector(".pick");
  choose(worst ? Number(worst.dataset.place) : 0);
})();
