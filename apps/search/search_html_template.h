// The page that `equitile search --report` fills in: kept apart from the code, as a page. It asks the network for nothing.
#pragma once

namespace equitile {

// After PageHead, and before the data: JSON in which no '<' is left.
inline constexpr const char* kSearchPageBody = R"html(
:root { --full: #d75f5f; --skip: #8a919d; --diagonal: #5f87d7; --multi-diagonal: #3f9f76; --stripes: #d09a36; --mean: #a070d0; }
tr.chosen td { background: var(--pick); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(190px, 45%), 1fr)); gap: 12px; margin-top: 20px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 14px 18px; }
.tile b { display: block; white-space: nowrap; font-size: 26px; letter-spacing: -0.02em; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.row { display: flex; flex-wrap: wrap; gap: 26px; }
figcaption b { color: var(--ink); }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 22px; }
.maps canvas { aspect-ratio: 1; image-rendering: pixelated; border: 1px solid var(--line); border-radius: 6px; }
.frames { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 8px; }
.frames img { width: 100%; display: block; border-radius: 6px; }
.frames div { font-size: 13px; color: var(--soft); }
svg .axis { stroke: var(--line); }
.bars { display: flex; align-items: flex-end; gap: 4px; height: 110px; border-bottom: 1px solid var(--line); position: relative; }
.bars i { flex: 1; background: var(--compute); border-radius: 3px 3px 0 0; min-width: 4px; }
.bars u { position: absolute; left: 0; right: 0; border-top: 2px dashed var(--soft); text-decoration: none; }
.half { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(380px, 100%), 1fr)); gap: 26px; }
.note { max-width: 86ch; color: var(--soft); font-size: 14px; margin: 0 0 14px; }
@media print { section { break-inside: avoid; } }
</style>
</head>
<body>
<main>
<header>
  <h1 id="title"></h1>
  <div class="soft" id="facts"></div>
  <p class="why" id="why"></p>
</header>
<div class="tiles" id="tiles"></div>
<section>
  <div class="top"><h2>What each head attends to</h2><span id="mode-key"></span></div>
  <p class="note" id="mode-note"></p>
  <div class="row" id="modes"></div>
</section>
<section id="curve-card">
  <div class="top"><h2>Error, density and speed</h2><span class="soft small" id="curve-way">from dense to the chosen point, one head at a time</span></div>
  <p class="note" id="curve-note"></p>
  <div class="half"><div id="by-density"></div><div id="by-speed"></div></div>
</section>
<section>
  <div class="top"><h2>Attention of typical heads</h2><span><span class="key"><i
    style="background:linear-gradient(90deg,#0b1030,#7a2a8f,#f07c4a,#ffe9a0)"></i>share of attention</span><span class="key"><i class="rule"
    style="border-color:#35e0ff"></i>what the mode keeps</span></span></div>
  <p class="note">Mean over the prompts of the first pass, the steps after the dense ones, and both guidance passes. Rows are queries, columns keys, in frame order;
    of every mode the head that it costs the least.</p>
  <div class="maps" id="maps"></div>
</section>
<section id="frames-card">
  <div class="top"><h2>Frames side by side</h2><span class="soft small" id="shown-prompt"></span></div>
  <div class="frames" id="frames"></div>
</section>
<section id="candidates-card">
  <div class="top"><h2>What each pass gave</h2></div>
  <p class="note" id="candidates-note"></p>
  <table id="candidates"></table>
</section>
<section id="videos-card">
  <div class="top"><h2>Validation</h2><span class="soft small" id="videos-note"></span></div>
  <table id="videos"></table>
</section>
<section>
  <div class="top"><h2 id="plan-title"></h2><label>Layer <select id="layer"></select></label></div>
  <div class="half"><div><table id="planners"></table></div><div id="work"></div></div>
</section>
<section>
  <div class="top"><h2>How it was made</h2></div>
  <table id="dials"></table>
</section>
</main>
<div id="tip"></div>
<script type="application/json" id="data">)html";

inline constexpr const char* kSearchPageTail = R"html(</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent), facts = data.facts;
const $ = id => document.getElementById(id);
const escape = text => String(text).replace(/[&<>"']/g, c => "&#" + c.charCodeAt(0) + ";");
const bytesOf = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const percent = x => (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %";
const times = x => "×" + x.toFixed(2);
const counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const db = x => x === null ? "identical" : x.toFixed(2) + " dB";
const signs = {full: "F", skip: "–", diagonal: "D", "multi-diagonal": "M", stripes: "S", mean: "o"};
const colour = mode => `var(--${mode})`;
function tip(event, text) {
  const box = $("tip");
  box.textContent = text || "";
  box.style.visibility = text ? "visible" : "hidden";
  box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8) + "px";
}
function table(id, head, rows) {
  $(id).innerHTML = `<tr>${head.map(h => `<th>${h}</th>`).join("")}</tr>` +
    rows.map(r => `<tr${r.chosen ? ' class="chosen"' : ""}>${r.cells.map(c => `<td>${c}</td>`).join("")}</tr>`).join("");
}

function drawHeader() {
  $("title").textContent = facts.name;
  $("facts").textContent = `${facts.objective} search on ${counted(facts.prompts.length, "prompt")}: ${facts.frames} frames of ${facts.width}×${facts.height}, ` +
    `${facts.tokens} tokens, ${facts.steps} steps of ${facts.model.split("/").filter(Boolean).pop() || "the model"}`;
  const m = facts.measured, heads = data.ranges.flatMap(r => r.layers.flat()), sparse = heads.filter(h => h.mode !== "full").length;
  $("why").textContent = `${sparse} of ${heads.length} heads${data.ranges.length > 1 ? " (over " + data.ranges.length + " ranges of steps)" : ""} do without full attention; ` +
    `${percent(facts.density)} of the blocks are left` + (m.psnr !== undefined ? `, and videos of other prompts come within ${db(m.psnr)} of the dense ones, ` +
    `made ${times(m.speedup)} as fast.` : ".");
  const tiles = [[percent(facts.density), "of attention blocks are kept"], [times(facts.predicted_speedup), "predicted speed-up of all steps"],
    [times(facts.dials.flop_reduction), "fewer operations"], [percent(facts.error), `squared error of layers, ± ${percent(2 * facts.error_deviation)}`]];
  if (m.psnr !== undefined) tiles.push([db(m.psnr), `PSNR on ${counted(m.videos, "other prompt")}`], [m.ssim.toFixed(3), "SSIM on them"], [times(m.speedup), "measured, decoding included"]);
  tiles.push([percent(facts.step_agreement), "of heads keep their mode if one step decides alone"],
    [percent(facts.prompt_agreement), "keep it if one prompt decides alone"]);
  if (facts.dense_seconds > 0) tiles.push([(facts.seconds / facts.dense_seconds).toFixed(1), "times the dense steps of its prompts: the cost of the search"]);
  $("tiles").innerHTML = tiles.map(([b, s]) => `<div class="tile"><b>${b}</b><span>${escape(s)}</span></div>`).join("");
}

function rangesText() {
  const isOpen = facts.step_ranges === "auto", won = data.candidates.length > 0 ? data.candidates[0].name : "";
  if (data.ranges.length > 1) return isOpen ? "Steps are split where that pays." : "Each step has its own pattern, as asked for.";
  if (!isOpen) return "One pattern for all steps, as asked for.";
  return won.includes("one range") ? "One pattern for all steps: it did better than one that changes on the way." :
    "One pattern for all steps: splitting them would gain less than 3 %.";
}

function drawModes() {
  const found = new Set(data.ranges.flatMap(r => r.layers.flat().map(h => h.mode)));
  $("mode-key").innerHTML = Object.keys(signs).filter(m => found.has(m)).map(m => `<span class="key"><i style="background:${colour(m)}"></i>${signs[m]} ${m}</span>`).join("");
  $("mode-note").textContent = "Layers down, heads across, a map per range of noise; the stronger the colour, the denser. " +
    rangesText();
  const cell = Math.max(12, Math.min(26, 900 / data.ranges[0].layers[0].length));
  data.ranges.forEach((range, r) => {
    const layers = range.layers.length, heads = range.layers[0].length, w = heads * cell + 30, h = layers * cell + 18;
    let svg = "";
    range.layers.forEach((layer, y) => {
      svg += `<text x="22" y="${y * cell + cell * 0.7 + 16}" text-anchor="end">${y}</text>`;
      layer.forEach((head, x) => {
        const strength = head.mode === "skip" ? 0.55 : 0.35 + 0.65 * Math.min(1, head.density);
        svg += `<g data-r="${r}" data-y="${y}" data-x="${x}"><rect x="${28 + x * cell}" y="${16 + y * cell}" width="${cell - 1.5}" height="${cell - 1.5}" rx="3" fill="${colour(head.mode)}"
          opacity="${strength.toFixed(2)}"/>` + (cell >= 16 ? `<text x="${28 + x * cell + cell / 2 - 0.75}" y="${16 + y * cell + cell * 0.68}" text-anchor="middle"
          style="fill:var(--ink);font-size:11px">${signs[head.mode]}</text>` : "") + "</g>";
      });
    });
    const figure = document.createElement("figure");
    figure.innerHTML = `<svg width="${w}" height="${h + 4}">${svg}</svg><figcaption>σ ${range.high.toFixed(3)} … ${range.low.toFixed(3)}</figcaption>`;
    $("modes").append(figure);
  });
  $("modes").onmousemove = event => {
    const at = event.target.closest("g[data-r]");
    if (!at) return tip(event);
    const {r, y, x} = at.dataset, head = data.ranges[r].layers[y][x];
    tip(event, `layer ${y}, head ${x}: ${head.mode}${head.size ? ", " + head.size : ""}\ndensity ${head.density.toFixed(3)}, error ${head.error.toPrecision(3)}` +
      (head.p !== undefined ? `\np ${head.p}, θ ${head.theta}` : ""));
  };
  $("modes").onmouseleave = event => tip(event);
}

// The round numbers from `low` to `high`, about five.
function ticks(low, high) {
  const step = roundStep(high - low, 5), numbers = [];
  for (let i = Math.ceil(low / step - 1e-6); i * step <= high + 1e-6 * step; ++i) numbers.push(i * step);
  return numbers;
}

// Points [[x, y], ...] as a line with axes from the data; y from 0, the last one marked.
function chart(id, points, xName, yName, xText, yText) {
  const W = Math.max(280, Math.min(540, $(id).clientWidth || 540)), H = 300, L = 62, B = 44, T = 30, R = 18;
  const xs = points.map(p => p[0]), lo = Math.min(...xs), hi = Math.max(...xs, lo + 1e-9), top = Math.max(...points.map(p => p[1]), 1e-12) * 1.08;
  const X = x => L + (x - lo) / (hi - lo) * (W - L - R), Y = y => H - B - y / top * (H - B - T);
  let svg = "";
  for (const x of ticks(lo, hi)) {
    svg += `<line class="axis" x1="${X(x)}" x2="${X(x)}" y1="${T}" y2="${H - B}"/><text x="${X(x)}" y="${H - B + 18}" text-anchor="middle">${xText(x)}</text>`;
  }
  for (const y of ticks(0, top)) {
    svg += `<line class="axis" x1="${L}" x2="${W - R}" y1="${Y(y)}" y2="${Y(y)}"/><text x="${L - 8}" y="${Y(y) + 4}" text-anchor="end">${yText(y)}</text>`;
  }
  const end = points[points.length - 1];
  svg += `<polyline fill="none" stroke="var(--accent)" stroke-width="2.5" points="${points.map(p => `${X(p[0]).toFixed(1)},${Y(p[1]).toFixed(1)}`).join(" ")}"/>` +
    `<circle cx="${X(end[0])}" cy="${Y(end[1])}" r="6" fill="var(--critical)" stroke="var(--card)" stroke-width="2"/>` +
    `<text x="${X(end[0])}" y="${Y(end[1]) - 12}" text-anchor="${end[0] > (lo + hi) / 2 ? "end" : "start"}" style="fill:var(--ink);font-weight:600">chosen</text>` +
    `<text x="${(L + W - R) / 2}" y="${H - 6}" text-anchor="middle">${xName}</text><text x="2" y="13">${yName}</text>`;
  $(id).innerHTML = `<svg viewBox="0 0 ${W} ${H}" style="width:100%;max-width:${W}px">${svg}</svg>`;
}
function drawCurve() {
  if (data.curve.length < 2) {
    $("curve-note").textContent = facts.objective === "budget" ? "Nothing could be left out: dense is all there is." :
      `The objective ${facts.objective} decides for each head by itself, by λ and ε: it passes no other points on its way. This one keeps ${percent(facts.density)} of the ` +
      `blocks at a squared error of ${percent(facts.error)} of the layers, a predicted ${times(facts.predicted_speedup)} of all steps.`;
    $("curve-way").hidden = true;
    return;
  }
  $("curve-note").hidden = true;
  const error = y => +(100 * y).toPrecision(3) + " %";
  chart("by-density", data.curve.map(p => [p[0], p[1]]), "density of attention", "squared error of layers", x => percent(x), error);
  chart("by-speed", data.curve.map(p => [p[2], p[1]]), "predicted speed-up of all steps", "squared error of layers", x => times(x), error);
}

const stops = [[11, 16, 48], [122, 42, 143], [240, 124, 74], [255, 233, 160]];
function heat(v) {
  const at = v * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at)), f = at - i;
  return stops[i].map((c, k) => Math.round(c + f * (stops[i + 1][k] - c)));
}
// Cells of which at least half is kept are outlined against those that are not.
function drawMap(canvas, map) {
  const n = map.cells, values = bytesOf(map.map), cover = bytesOf(map.cover), scale = Math.max(4, Math.floor(520 / n));
  canvas.width = canvas.height = n * scale;
  const c = canvas.getContext("2d");
  for (let q = 0; q < n; ++q) for (let k = 0; k < n; ++k) {
    c.fillStyle = `rgb(${heat(values[q * n + k] / 255)})`;
    c.fillRect(k * scale, q * scale, scale, scale);
  }
  const isKept = (q, k) => q >= 0 && k >= 0 && q < n && k < n && cover[q * n + k] >= 128;
  c.strokeStyle = "#35e0ff";
  c.lineWidth = Math.min(5, Math.max(1.5, scale / 5));
  c.beginPath();
  for (let q = 0; q < n; ++q) for (let k = 0; k < n; ++k) {
    if (!isKept(q, k)) continue;
    const x = k * scale, y = q * scale;
    if (!isKept(q - 1, k)) { c.moveTo(x, y); c.lineTo(x + scale, y); }
    if (!isKept(q + 1, k)) { c.moveTo(x, y + scale); c.lineTo(x + scale, y + scale); }
    if (!isKept(q, k - 1)) { c.moveTo(x, y); c.lineTo(x, y + scale); }
    if (!isKept(q, k + 1)) { c.moveTo(x + scale, y); c.lineTo(x + scale, y + scale); }
  }
  c.stroke();
}
function drawMaps() {
  for (const map of data.maps) {
    const figure = document.createElement("figure");
    figure.innerHTML = `<canvas></canvas><figcaption><b>${map.mode}</b>: layer ${map.layer}, head ${map.head}<br>${map.size ? escape(map.size) + ", " : ""}density ` +
      `${map.density.toFixed(3)}, error ${map.error.toPrecision(3)}</figcaption>`;
    drawMap(figure.querySelector("canvas"), map);
    $("maps").append(figure);
  }
}

function drawVideos() {
  $("frames-card").hidden = data.frames.length === 0;
  $("shown-prompt").textContent = facts.shown_prompt ? `“${facts.shown_prompt}”` : "";
  $("frames").innerHTML = "<div>dense</div><div>with the pattern</div><div>difference, eightfold</div>" + data.frames.map(f =>
    ["dense", "sparse", "difference"].map(side => `<img alt="frame ${f.frame}, ${side}" src="${f[side]}">`).join("")).join("");
  $("videos-card").hidden = data.videos.length === 0;
  $("videos-note").textContent = "each against the dense video of the same prompt and seed";
  table("videos", ["videos of", "prompt", "seed", "PSNR", "SSIM", "density", "speed-up"], data.videos.map(v => ({cells: [escape(v.group), escape(v.prompt), v.seed,
    db(v.psnr), v.ssim.toFixed(4), v.density.toFixed(3), times(v.speedup)]})));
}

function drawCandidates() {
  $("candidates-card").hidden = data.candidates.length === 0;
  $("candidates-note").textContent = "The first look tries every option of a head with all other layers dense, the second with the layers before it already sparse. " +
    "Candidates are compared by the velocity of whole steps; " + (data.candidates.some(c => c.psnr !== null) ?
    `the best of them by ${counted(facts.choice_videos, "video")} of other prompts.` : "no videos were made to choose between them.");
  table("candidates", ["candidate", "density", "predicted speed-up", "error of the velocity", "videos"], data.candidates.map((c, i) => ({chosen: i === 0, cells:
    [escape(c.name) + (i === 0 ? " (chosen)" : ""), c.density.toFixed(3), times(c.speedup), c.velocity_error.toPrecision(4), c.psnr === null ? "" : db(c.psnr)]})));
}

function drawWork() {
  const layer = data.plan.layers[$("layer").value], best = layer.plans[0], other = layer.plans.find(p => p.planner === "ulysses") || layer.plans[layer.plans.length - 1];
  const top = Math.max(...best.work, ...other.work, 1);
  $("work").innerHTML = [other, best].map(p => {
    const mean = p.work.reduce((a, b) => a + b, 0) / p.work.length;
    return `<figure style="margin:0 0 18px"><div class="bars"><u style="bottom:${100 * mean / top}%"></u>${p.work.map(w => `<i style="height:${100 * w / top}%"></i>`).join("")}</div>` +
      `<figcaption><b>${escape(p.planner)}</b>${p.chosen ? " → " + escape(p.chosen) : ""}: ρ ${p.rho.toFixed(3)}, ${(1e3 * p.seconds).toFixed(2)} ms a layer</figcaption></figure>`;
  }).join("");
}
function drawPlan() {
  $("plan-title").textContent = `The plan that results on ${data.plan.ranks} ranks`;
  table("planners", ["planner", "mean ρ", "largest ρ", "MB of the busiest rank", "predicted ms, all layers shown"], data.plan.planners.map((p, i) => ({chosen: i === 0,
    cells: [escape(p.planner), p.rho_mean.toFixed(3), p.rho_max.toFixed(3), (p.bytes_max / 1e6).toFixed(2), (1e3 * p.seconds).toFixed(2)]})));
  $("layer").innerHTML = data.plan.layers.map((l, i) => `<option value="${i}">${l.layer}</option>`).join("");
  $("layer").onchange = drawWork;
  drawWork();
}
function drawDials() {
  const number = x => Number.isInteger(x) ? x : Number(x.toPrecision(5));
  const rows = [...Object.entries(facts.dials), ...Object.entries(facts.measured)].map(([k, v]) => ({cells: [escape(k.replaceAll("_", " ")), number(v)]}));
  rows.push({cells: ["prompts", facts.prompts.map(escape).join("<br>")]});
  table("dials", ["", ""], rows);
}

drawHeader(); drawModes(); drawCurve(); drawMaps(); drawVideos(); drawCandidates(); drawPlan(); drawDials();
</script>
</body>
</html>
)html";

}  // namespace equitile
