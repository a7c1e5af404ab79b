// The page that `equitile plan --html` fills in: kept apart from the code, as a page. It asks the network for nothing.
#pragma once

namespace equitile {

// After PageHead, and before the data: JSON in which no '<' is left.
inline constexpr const char* kPlanPageBody = R"html(.plan { display: grid; grid-template-columns: 190px minmax(0, 1fr) 300px; gap: 18px; align-items: center; width: 100%; padding: 10px 12px;
  border: 0; border-top: 1px solid var(--line); background: none; color: inherit; font: inherit; text-align: left; cursor: pointer; }
.plan:hover { background: var(--faint); }
.plan[aria-pressed="true"] { background: var(--pick); border-radius: 10px; }
.plan b { font-size: 16px; }
.plan svg { display: block; width: 100%; height: 58px; }
.stack { display: flex; height: 16px; border-radius: 4px; overflow: hidden; }
.stack i { display: block; height: 100%; }
.two { display: grid; grid-template-columns: minmax(0, 620px) minmax(0, 1fr); gap: 26px; }
#mask { aspect-ratio: 1; image-rendering: pixelated; border: 1px solid var(--line); border-radius: 6px; }
#heads { display: grid; grid-template-columns: repeat(auto-fill, minmax(58px, 1fr)); gap: 8px; max-height: 520px; overflow-y: auto; padding: 3px; }
#heads button { padding: 0; border: 0; background: none; color: var(--soft); font: inherit; font-size: 11px; cursor: pointer; }
#heads canvas { image-rendering: pixelated; border-radius: 4px; aspect-ratio: 1; }
#heads button[aria-pressed="true"] canvas { outline: 3px solid var(--accent); }
#heads button[aria-pressed="true"] { color: var(--ink); font-weight: 600; }
.chips { display: flex; flex-wrap: wrap; gap: 5px 14px; margin-top: 14px; max-height: 150px; overflow-y: auto; }
@media (max-width: 860px) { .plan, .two { grid-template-columns: minmax(0, 1fr); } }
</style>
</head>
<body>
<main>
<header>
  <h1 id="title"></h1>
  <div class="soft" id="facts"></div>
  <p class="why" id="why"></p>
  <label id="layer-box" hidden>Layer <select id="layer"></select></label>
</header>
<section>
  <div class="top"><h2>Work per rank, best plan first</h2>
    <span><span class="key"><i class="rule" style="border-color:var(--soft);border-top-style:dashed"></i>even share</span><span class="key"><i class="rule"
      style="border-color:var(--critical)"></i>rho: what everybody waits for, ring steps included</span><span class="key"><i
      style="background:var(--compute)"></i>compute</span><span class="key"><i style="background:var(--exchange)"></i>exchange</span><span class="key"><i
      style="background:var(--wait)"></i>wait</span></span></div>
  <div id="plans"></div>
</section>
<section>
  <div class="top"><h2>Who computes which rows</h2>
    <span><label>Planner <select class="planner"></select></label> &ensp; <label>Head <select id="head"></select></label></span></div>
  <div class="two" id="picture">
    <div><canvas id="mask"></canvas><div class="soft small" style="margin-top:6px">Rows: query blocks. Columns: key blocks. A kept block has the colour of the
      rank that computes its row.<span id="cells"></span></div></div>
    <div><div id="heads"></div><div class="chips num" id="chips"></div></div>
  </div>
  <p class="soft" id="no-picture" hidden>The masks of later layers are left out to keep this page small; <code>--layer</code> makes a page of one layer.</p>
</section>
<section>
  <div class="top"><h2>Predicted timeline</h2>
    <span><label>Planner <select class="planner"></select></label> &ensp; <label><input type="checkbox" id="same" checked> same scale for all
      planners</label></span></div>
  <canvas id="time"></canvas>
  <div style="margin-top:8px"><span class="key"><i style="background:var(--compute)"></i>compute</span><span class="key"><i
    style="background:var(--exchange)"></i>exchange that is not hidden</span><span class="key"><i style="background:var(--wait)"></i>wait for other
    ranks</span><span class="soft small" id="time-note"></span></div>
</section>
</main>
<div id="tip"></div>
<script type="application/json" id="data">)html";

inline constexpr const char* kPlanPageTail = R"html(</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const state = {layer: 0, plan: 0, head: 0};
const layer = () => data.layers[state.layer];
const plan = () => layer().plans[state.plan];
const escape = text => String(text).replace(/[&<>"']/g, c => "&#" + c.charCodeAt(0) + ";");
const ms = seconds => { const x = seconds * 1e3; return x.toFixed(x === 0 ? 0 : x < 10 ? 3 : x < 1000 ? 2 : 0) + " ms"; };
const bytesOf = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const shortsOf = text => { const b = bytesOf(text), out = new Uint16Array(b.length / 2);
  for (let i = 0; i < out.length; ++i) out[i] = b[2 * i] | b[2 * i + 1] << 8; return out; };
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const kept = new WeakMap();
function once(object, make) { if (!kept.has(object)) kept.set(object, make()); return kept.get(object); }

// Hues far apart for neighbouring ranks; lightness alternates, so that it works without hue as well.
function rankColour(rank, ranks) {
  const few = ranks <= 12, hue = (few ? 255 + rank * 360 / ranks : 255 + rank * 137.508) * Math.PI / 180;
  const light = (dark.matches ? 0.66 : 0.56) + (few ? rank % 2 : rank % 3 / 2) * 0.16, chroma = 0.15;
  const a = chroma * Math.cos(hue), b = chroma * Math.sin(hue);
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3, m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3,
    s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const code = x => Math.round(255 * Math.min(1, Math.max(0, x <= 0.0031308 ? 12.92 * x : 1.055 * Math.max(x, 0) ** (1 / 2.4) - 0.055)));
  return [code(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s), code(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    code(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s)];
}
let colours = [];
const colour = rank => `rgb(${colours[rank]})`;

function headName(lane) {
  const {batch, heads} = layer().mask;
  return batch > 1 ? `item ${Math.floor(lane / heads)}, head ${lane % heads}` : `head ${lane}`;
}
const planName = p => p.chosen ? `${p.planner} → ${p.chosen}` : p.planner;
const maskBits = () => once(layer(), () => bytesOf(layer().bits));
const ownersOf = lane => { const maps = once(plan().row_maps, () => plan().row_maps.map(shortsOf)); return maps[plan().map_of_lane[lane]]; };
// Of block (row, column), or of the cell of several blocks that a large mask is shown in.
function isKept(bits, lane, row, column) {
  const {q_blocks, kv_blocks} = layer().mask, cell = layer().cell, width = Math.ceil(kv_blocks / cell) + 7 >> 3;
  const y = Math.floor(row / cell), x = Math.floor(column / cell);
  return bits[(lane * Math.ceil(q_blocks / cell) + y) * width + (x >> 3)] >> (x & 7) & 1;
}

function drawHeader() {
  const {mask, ranks, cluster} = layer();
  $("title").textContent = `${mask.source} on ${ranks} rank${ranks > 1 ? "s" : ""}`;
  document.title = `equitile plan: ${$("title").textContent}`;
  const gb = link => `${+(link.bytes_per_second * 8e-9).toPrecision(4)} Gb/s, ${+(link.latency_seconds * 1e6).toPrecision(4)} µs`;
  const facts = [(mask.batch > 1 ? `batch ${mask.batch} × ` : "") + `${mask.heads} heads`, `${mask.q_blocks} × ${mask.kv_blocks} blocks of ${mask.block}`,
    `${(100 * mask.density).toFixed(1)} % kept`, `${cluster.gflops} GFLOP/s per rank`, `link ${gb(cluster.link)}`];
  if (cluster.node_of) facts.push(`${new Set(cluster.node_of).size} nodes with ${gb(cluster.node_link)} inside`);
  if (cluster.cable_bytes_per_second) facts.push(`cable of a node ${+(cluster.cable_bytes_per_second * 8e-9).toPrecision(4)} Gb/s`);
  if (cluster.speeds) facts.push(`speeds ${cluster.speeds.join(", ")}`);
  $("facts").textContent = facts.join(" · ");
  $("why").textContent = layer().why;
}

// Loads relative to the even share, so that planners can be compared by height.
function loads(p) {
  const speeds = layer().cluster.speeds, total = p.work_per_rank.reduce((a, b) => a + b, 0);
  const even = total / (speeds ? speeds.reduce((a, b) => a + b, 0) : p.work_per_rank.length);
  return p.work_per_rank.map((work, rank) => even > 0 ? work / (speeds ? speeds[rank] : 1) / even : 0);
}
function drawPlans() {
  const plans = layer().plans, top = 1.06 * Math.max(1.05, ...plans.map(p => Math.max(p.rho, ...loads(p))));
  const slowest = Math.max(...plans.map(p => p.predicted_seconds)) || 1;
  const y = load => (100 * (1 - load / top)).toFixed(2);
  $("plans").innerHTML = plans.map((p, i) => {
    const all = loads(p), step = 1000 / all.length, gap = Math.min(4, step * 0.18);
    const bars = all.map((load, rank) => `<rect x="${(rank * step + gap / 2).toFixed(2)}" y="${y(load)}" width="${(step - gap).toFixed(2)}" height="${
      (100 * load / top).toFixed(2)}" fill="${colour(rank)}"><title>rank ${rank}: ${load.toFixed(4)} of an even share</title></rect>`).join("");
    const rule = (load, style) => `<line x1="0" x2="1000" y1="${y(load)}" y2="${y(load)}" vector-effect="non-scaling-stroke" ${style}/>`;
    const part = (seconds, name) => `<i style="width:${(100 * seconds / slowest).toFixed(3)}%;background:var(--${name})" title="${name} ${ms(seconds)}"></i>`;
    return `<button class="plan" data-plan="${i}" aria-pressed="${i === state.plan}"><span><b>${escape(planName(p))}</b><br><span
      class="num small"><b>ρ ${p.rho.toFixed(4)}</b> <span class="soft">bound ${p.bound.toFixed(4)}</span></span></span>
      <svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="work per rank">${bars}${
      rule(1, 'stroke="var(--soft)" stroke-dasharray="5 4"')}${rule(p.rho, 'stroke="var(--critical)" stroke-width="2"')}</svg>
      <span class="num"><span class="stack">${part(p.predicted_compute, "compute")}${part(p.predicted_exchange, "exchange")}${
      part(p.predicted_wait, "wait")}</span><b>${ms(p.predicted_seconds)}</b> <span class="soft small">${
      (p.bytes_max * 1e-6).toFixed(1)} MB per rank</span></span></button>`;
  }).join("");
}

function paint(canvas, lane, width, height) {
  const {q_blocks, kv_blocks} = layer().mask, bits = maskBits(), owners = ownersOf(lane);
  canvas.width = width; canvas.height = height;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height), empty = dark.matches ? [31, 37, 46] : [238, 240, 244];
  for (let row = 0, at = 0; row < height; ++row) {
    const q = Math.floor(row * q_blocks / height), ink = colours[owners[q]];
    for (let column = 0; column < width; ++column, at += 4) {
      const rgb = isKept(bits, lane, q, Math.floor(column * kv_blocks / width)) ? ink : empty;
      image.data[at] = rgb[0]; image.data[at + 1] = rgb[1]; image.data[at + 2] = rgb[2]; image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}
function drawMask() {
  const {q_blocks, kv_blocks} = layer().mask, shown = layer().bits !== null;
  $("picture").hidden = !shown; $("picture").style.display = shown ? "" : "none"; $("no-picture").hidden = shown;
  if (!shown) return;
  const cell = layer().cell;
  $("cells").textContent = cell > 1 ? ` A point stands for ${cell} × ${cell} blocks, and is filled the more often the more of them are kept.` : "";
  paint($("mask"), state.head, Math.ceil(kv_blocks / cell), Math.ceil(q_blocks / cell));
  const bits = maskBits(), owners = ownersOf(state.head), blocks = new Map();
  for (let q = 0; q < q_blocks; ++q) {
    let count = 0;
    for (let k = 0; k < kv_blocks; ++k) count += isKept(bits, state.head, q, k);
    blocks.set(owners[q], (blocks.get(owners[q]) || 0) + count);
  }
  $("chips").innerHTML = [...blocks].sort((a, b) => a[0] - b[0]).map(([rank, count]) =>
    `<span class="key" style="margin:0"><i style="background:${colour(rank)}"></i>rank ${rank}: ${layer().cell > 1 ? "about " : ""}${count} blocks</span>`).join("");
}
function drawHeads() {
  if (layer().bits === null) return;
  const {q_blocks, kv_blocks} = layer().mask, lanes = plan().map_of_lane.length;
  if ($("heads").children.length !== lanes) {
    $("heads").innerHTML = plan().map_of_lane.map((_, lane) => `<button data-head="${lane}"><canvas></canvas>${
      layer().mask.batch > 1 ? headName(lane).replace("item ", "").replace(", head ", "/") : lane}</button>`).join("");
  }
  [...$("heads").children].forEach((button, lane) => {
    button.title = headName(lane);
    button.setAttribute("aria-pressed", lane === state.head);
    paint(button.firstChild, lane, Math.min(64, kv_blocks), Math.min(64, q_blocks));
  });
}

const kEdge = 62;
// [rank][{name, begin, end, stage}], times as parts of the plan's seconds.
function timelineOf(p) {
  return once(p.timeline, () => {
    const all = shortsOf(p.timeline.times), ranks = p.timeline.ranks, stages = p.timeline.stages, width = 3 * stages + 2;
    return ranks.map((_, row) => {
      const times = all.subarray(row * width, (row + 1) * width), parts = [];
      let now = 0;
      const to = (end, name, stage) => { if (end > now) parts.push({name, begin: now / 65535, end: end / 65535, stage}); now = Math.max(now, end); };
      for (let s = 0; s < stages; ++s) { to(times[3 * s], "wait", s); to(times[3 * s + 1], "exchange", s); to(times[3 * s + 2], "compute", s); }
      to(times[3 * stages], "wait", -1); to(times[3 * stages + 1], "exchange", -1); to(65535, "wait", -1);
      return parts;
    });
  });
}
function timeScale() { return $("same").checked ? Math.max(...layer().plans.map(p => p.predicted_seconds)) : plan().predicted_seconds; }
function drawTime() {
  const canvas = $("time"), p = plan(), rows = timelineOf(p), ratio = devicePixelRatio || 1;
  const rowHeight = Math.max(9, Math.min(34, Math.floor(520 / rows.length))), height = rows.length * rowHeight + 26, width = canvas.clientWidth;
  canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = height + "px";
  const c = canvas.getContext("2d"); c.scale(ratio, ratio);
  c.font = "12px system-ui, sans-serif"; c.textBaseline = "middle";
  const scale = timeScale(), x = part => kEdge + (width - kEdge - 14) * (scale > 0 ? part * p.predicted_seconds / scale : part);
  const ink = {compute: css("--compute"), exchange: css("--exchange"), wait: css("--wait")}, card = css("--card"), soft = css("--soft");
  const gap = rowHeight > 14 ? 5 : 1;
  rows.forEach((parts, row) => {
    const top = row * rowHeight;
    c.fillStyle = soft;
    if (rowHeight >= 12 || row % 2 === 0) c.fillText(`rank ${p.timeline.ranks[row]}`, 0, top + rowHeight / 2);
    for (const part of parts) {
      c.fillStyle = ink[part.name];
      c.fillRect(x(part.begin), top, Math.max(0.5, x(part.end) - x(part.begin)), rowHeight - gap);
    }
    c.fillStyle = card;
    const computing = parts.filter(part => part.name === "compute");
    for (const part of computing.slice(1)) if (x(part.end) - x(part.begin) > 4) c.fillRect(x(part.begin) - 0.5, top, 1, rowHeight - gap);
  });
  c.fillStyle = soft; c.textBaseline = "bottom";
  const unit = roundStep(scale, Math.max(2, (width - kEdge) / 110));
  for (let tick = 0; tick * unit <= scale * 1.0001; ++tick) {
    const label = +(tick * unit * 1e3).toPrecision(6) + " ms", at = kEdge + (width - kEdge - 14) * tick * unit / (scale || 1);
    c.textAlign = tick === 0 ? "left" : at + c.measureText(label).width / 2 > width ? "right" : "center";
    c.fillText(label, c.textAlign === "right" ? width : at, height);
    if (unit <= 0) break;
  }
  const shown = rows.length < layer().ranks ? ` · ${rows.length} of ${layer().ranks} ranks shown` : "";
  $("time-note").textContent = `${p.timeline.stages} stage${p.timeline.stages > 1 ? "s" : ""}${shown}`;
}

function fill(select, names, chosen) {
  select.innerHTML = names.map((name, i) => `<option value="${i}">${escape(name)}</option>`).join("");
  select.value = chosen;
}
function draw() {
  colours = Array.from({length: layer().ranks}, (_, rank) => rankColour(rank, layer().ranks));
  document.querySelectorAll("select.planner").forEach(select => fill(select, layer().plans.map(planName), state.plan));
  fill($("head"), plan().map_of_lane.map((_, lane) => headName(lane)), state.head);
  drawHeader(); drawPlans(); drawMask(); drawHeads(); drawTime();
}
function choose(change) { Object.assign(state, change); draw(); }

$("layer-box").hidden = data.layers.length < 2;
fill($("layer"), data.layers.map(l => l.layer ?? 0), 0);
$("layer").onchange = event => {
  const name = plan().planner, next = +event.target.value;
  choose({layer: next, plan: Math.max(0, data.layers[next].plans.findIndex(p => p.planner === name))});
};
document.querySelectorAll("select.planner").forEach(select => select.onchange = () => choose({plan: +select.value}));
$("head").onchange = event => choose({head: +event.target.value});
$("plans").onclick = event => { const row = event.target.closest("[data-plan]"); if (row) choose({plan: +row.dataset.plan}); };
$("heads").onclick = event => { const head = event.target.closest("[data-head]"); if (head) choose({head: +head.dataset.head}); };
$("same").onchange = drawTime;
addEventListener("resize", drawTime);
dark.addEventListener("change", draw);

function tip(event, text) {
  const box = $("tip");
  box.style.visibility = text ? "visible" : "hidden";
  if (!text) return;
  box.textContent = text;
  box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = event.clientY + 16 + "px";
}
$("mask").onmousemove = event => {
  const {q_blocks, kv_blocks} = layer().mask, box = $("mask").getBoundingClientRect();
  const q = Math.min(q_blocks - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * q_blocks)));
  const k = Math.min(kv_blocks - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * kv_blocks)));
  const what = layer().cell > 1 ? "" : isKept(maskBits(), state.head, q, k) ? ": kept" : ": left out";
  tip(event, `query block ${q}, key block ${k}${what}\nrow on rank ${ownersOf(state.head)[q]}`);
};
$("time").onmousemove = event => {
  const p = plan(), rows = timelineOf(p), box = $("time").getBoundingClientRect(), row = Math.floor((event.clientY - box.top) / ((box.height - 26) / rows.length));
  const at = (event.clientX - box.left - kEdge) / (box.width - kEdge - 14) * timeScale() / (p.predicted_seconds || 1);
  const part = rows[row] && rows[row].find(one => at >= one.begin && at < one.end);
  tip(event, part && `rank ${p.timeline.ranks[row]}, ${part.stage < 0 ? "after its last stage" : "stage " + part.stage}: ${part.name} ${
    ms((part.end - part.begin) * p.predicted_seconds)}`);
};
for (const id of ["mask", "time"]) $(id).onmouseleave = event => tip(event, "");
// Opens with the head that the best plan shares among most ranks, of those with the most blocks: there is most to see.
const bitsOf = byte => byte ? (byte & 1) + bitsOf(byte >> 1) : 0, lanes = plan().map_of_lane.length;
const toSee = plan().map_of_lane.map((_, lane) => {
  const size = maskBits().length / lanes, part = maskBits().subarray(lane * size, (lane + 1) * size);
  return new Set(ownersOf(lane)).size + part.reduce((sum, byte) => sum + bitsOf(byte), 0) / (8 * size + 1);
});
state.head = toSee.indexOf(Math.max(...toSee));
draw();
</script>
</body>
</html>
)html";

}  // namespace equitile
