"use strict";
(() => {
  const map = document.getElementById("layer-map");
  const tiles = Array.from(map.querySelectorAll("rect"));
  const names = tiles.map((tile) => tile.querySelector("title").textContent);
  const words = tiles.map((tile, i) => [names[i], tile.dataset.reason, tile.dataset.node].join(" ").toLowerCase());
  const reads = tiles.map((tile) => tile.dataset.reads.split(" ").filter(Boolean).map(Number));
  const readers = tiles.map(() => []);
  reads.forEach((sources, i) => sources.forEach((source) => readers[source].push(i)));
  const said = document.getElementById("map-layer");
  const counted = document.getElementById("map-count");
  const search = document.getElementById("map-search");
  const whole = counted.textContent;
  let chosen = 0;
  let near = [];

  const choose = (i) => {
    tiles[chosen].tabIndex = -1;
    tiles[chosen].removeAttribute("aria-selected");
    near.forEach((one) => tiles[one].classList.remove("near"));
    chosen = i;
    near = reads[i].concat(readers[i]);
    near.forEach((one) => tiles[one].classList.add("near"));
    tiles[i].tabIndex = 0;
    tiles[i].setAttribute("aria-selected", "true");
    const data = tiles[i].dataset;
    const list = (found) => found.map((one) => names[one].split(":")[0]).join(", ");
    said.textContent = [
      names[i],
      data.node && "in the deployed model: " + data.node,
      data.grid && "grid of its result: " + data.grid,
      data.error && "error that it adds: " + data.error,
      data.reason && "why: " + data.reason,
      reads[i].length ? "reads " + list(reads[i]) : "reads the inputs of the model",
      readers[i].length ? "read by " + list(readers[i]) : "",
    ].filter(Boolean).join("\n");
  };
  const go = (i) => {
    const to = Math.min(Math.max(i, 0), tiles.length - 1);
    choose(to);
    tiles[to].focus();
  };

  map.addEventListener("click", (event) => {
    const tile = event.target.closest("rect");
    if (tile) go(tiles.indexOf(tile));
  });
  map.addEventListener("focusin", (event) => {
    const i = tiles.indexOf(event.target);
    if (i >= 0 && i !== chosen) choose(i);
  });
  map.addEventListener("keydown", (event) => {
    const columns = Number(map.dataset.columns);
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (event.key in moves) go(chosen + moves[event.key]);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(tiles.length - 1);
    else return;
    event.preventDefault();
  });

  const find = () => {
    const wanted = search.value.trim().toLowerCase();
    let first = -1;
    let found = 0;
    tiles.forEach((tile, i) => {
      const hit = words[i].includes(wanted);
      tile.classList.toggle("away", !hit);
      if (hit && first < 0) first = i;
      found += hit ? 1 : 0;
    });
    counted.textContent = wanted ? found + " of " + whole : whole;
    return first;
  };
  search.addEventListener("input", find);
  search.form.addEventListener("submit", (event) => {
    event.preventDefault();
    const first = find();
    if (first >= 0) go(first);
  });
  document.getElementById("map-by").addEventListener("change", (event) => {
    map.dataset.by = event.target.value;
    document.querySelectorAll(".legend").forEach((legend) => {
      legend.hidden = legend.dataset.by !== event.target.value;
    });
  });
  document.getElementById("map-zoom").addEventListener("input", (event) => {
    map.style.width = "calc(" + event.target.value + " * " + map.dataset.base + ")";
  });
})();
