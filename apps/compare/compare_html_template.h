// The page that `equitile compare --html` fills in: kept apart from the code, as a page. It asks the network for nothing; videos
// of `--prompts` lie beside it.
#pragma once

namespace equitile {

// After PageHead, and before the data: JSON in which no '<' is left.
inline constexpr const char* kComparePageBody = R"html(:root { --b0: #2f6fdf; --b1: #d1343c; --b2: #2f9e5b; --b3: #a04fd0; --b4: #c77700; }
@media (prefers-color-scheme: dark) { :root { --b0: #5b93f5; --b1: #ff6b70; --b2: #58c98a; --b3: #c98bf0; --b4: #f2b143; } }
.screens { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(150px, 100%), 1fr)); gap: 14px; }
.screen { overflow: hidden; border: 1px solid var(--line); border-radius: 8px; background: #000; }
.screen img, .screen video { display: block; width: 100%; image-rendering: pixelated; }
.difference { position: relative; isolation: isolate; background: #000; }
.difference img + img, .difference video + video { position: absolute; inset: 0; height: 100%; mix-blend-mode: difference; }
.controls { display: flex; gap: 12px; align-items: center; margin: 14px 0 4px; }
.controls input { flex: 1; min-width: 60px; accent-color: var(--accent); }
.controls button { font: inherit; color: var(--ink); background: var(--faint); border: 1px solid var(--line); border-radius: 8px; padding: 4px 14px; cursor: pointer; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 10px 22px; margin-top: 10px; }
.charts svg { display: block; width: 100%; height: 190px; cursor: pointer; }
.facts { display: grid; grid-template-columns: auto 1fr; gap: 2px 16px; margin: 14px 0 0; }
.facts dt { color: var(--soft); } .facts dd { margin: 0; }
</style>
</head>
<body>
<main>
<header><h1 id="title"></h1><dl class="facts num" id="facts"></dl></header>
<div id="rows"></div>
</main>
<script type="application/json" id="data">)html";

inline constexpr const char* kComparePageTail = R"html(</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const make = (tag, properties = {}, children = []) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const svg = (tag, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const colour = curve => `var(--b${curve % 5})`;
const decibels = psnr => psnr === null ? "identical" : `${psnr.toFixed(2)} dB`;

// A picture or a video that shows frame `place` of those that the row has.
function medium(screen, row) {
  if (screen.video === undefined) {
    const image = make("img", {alt: screen.label});
    image.seek = place => image.src = screen.frames[place];
    return image;
  }
  const video = make("video", {src: screen.video, muted: true, playsInline: true, preload: "auto"});
  video.seek = place => video.currentTime = (row.frames[place] + 0.5) / data.fps;
  return video;
}

// Curves over frames, with a line at the frame that is shown; `top` is where identical frames are.
function chart(row, name, values, unit, seek) {
  const height = 190, left = 46, right = 10, upper = 22, lower = 26;
  let width = 480, shown = 0, cursor;
  const box = svg("svg", {role: "img", "aria-label": name});
  const known = row.curves.flatMap(values).filter(value => value !== null);
  let low = Math.min(...known), high = Math.max(...known);
  if (!known.length) [low, high] = [0, 1];
  const step = roundStep(Math.max(high - low, unit.least), 5);
  low = Math.floor(low / step) * step; high = Math.max(low + step, Math.ceil(high / step) * step);
  const count = row.curves[0].psnr.length;
  const x = frame => left + (width - left - right) * (count > 1 ? frame / (count - 1) : 0.5);
  const y = value => upper + (height - upper - lower) * (1 - ((value ?? high) - low) / (high - low));
  const draw = () => {
    box.replaceChildren(svg("text", {x: left, y: 13}, `${name} per frame`));
    for (let value = low; value <= high + step / 2; value += step) {
      box.append(svg("line", {x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "var(--line)"}));
      box.append(svg("text", {x: left - 6, y: y(value) + 4, "text-anchor": "end"}, +value.toPrecision(6) + unit.name));
    }
    const frames = Math.max(1, roundStep(Math.max(1, count - 1), 6));
    for (let frame = 0; frame < count; frame += frames) {
      box.append(svg("text", {x: x(frame), y: height - 8, "text-anchor": "middle"}, frame));
    }
    row.curves.forEach((curve, i) => {
      const points = values(curve).map((value, frame) => `${x(frame).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
      box.append(svg("polyline", {points, fill: "none", stroke: colour(i), "stroke-width": 2}));
    });
    cursor = svg("line", {x1: x(shown), x2: x(shown), y1: upper, y2: height - lower, stroke: "var(--ink)", "stroke-dasharray": "3 3"});
    box.append(cursor);
  };
  draw();
  // As wide as there is room: stretched letters cannot be read.
  new ResizeObserver(([entry]) => { width = entry.contentRect.width; draw(); }).observe(box);
  box.onclick = event => {
    const place = box.getBoundingClientRect(), at = event.clientX - place.left;
    seek(Math.round((at - left) / (width - left - right) * (count - 1)));
  };
  box.show = frame => {
    shown = frame;
    cursor.setAttribute("x1", x(frame));
    cursor.setAttribute("x2", x(frame));
  };
  return box;
}

function rowOf(row) {
  const section = make("section"), media = [], captions = [];
  if (row.name) section.append(make("div", {className: "top"}, [make("h2", {textContent: row.name})]));
  const screens = make("div", {className: "screens"});
  const show = (screen, caption) => {
    const one = medium(screen, row);
    media.push(one);
    screens.append(make("figure", {}, [make("div", {className: "screen"}, [one]), caption]));
  };
  row.screens.forEach((screen, i) => {
    const caption = make("figcaption", {textContent: screen.label});
    show(screen, caption);
    if (i > 0) captions.push({caption, label: screen.label, curve: row.curves[i - 1]});
  });
  row.screens.slice(1).forEach(screen => {
    const pair = [medium(row.screens[0], row), medium(screen, row)];
    media.push(...pair);
    const inside = make("div", {className: "difference"}, pair);
    inside.style.filter = `brightness(${data.gain})`;
    const box = make("div", {className: "screen"}, [inside]);
    const of = row.screens.length > 2 ? ` of ${screen.label}` : "";
    screens.append(make("figure", {}, [box, make("figcaption", {textContent: `difference${of}, times ${data.gain}`})]));
  });
  section.append(screens);

  const last = row.frames.length - 1, videos = media.filter(one => one.tagName === "VIDEO");
  const slider = make("input", {type: "range", min: 0, max: last, value: 0, ariaLabel: "frame"});
  const said = make("span", {className: "num small soft"}), button = make("button", {textContent: "Play"});
  section.append(make("div", {className: "controls"}, [button, slider, said]));
  const charts = [];
  // `moves`: videos too, which go by themselves while they play.
  const go = (place, moves = true) => {
    slider.value = place;
    const frame = row.frames[place];
    said.textContent = `frame ${frame} of ${row.curves[0].psnr.length}`;
    for (const one of media) if (moves || one.tagName !== "VIDEO") one.seek(place);
    for (const {caption, label, curve} of captions)
      caption.textContent = `${label}: ${decibels(curve.psnr[frame])}, SSIM ${curve.ssim[frame].toFixed(4)}`;
    for (const one of charts) one.show(frame);
  };
  const seek = frame => {
    stop();
    let nearest = 0;
    row.frames.forEach((shown, place) => { if (Math.abs(shown - frame) < Math.abs(row.frames[nearest] - frame)) nearest = place; });
    go(nearest);
  };
  let timer = 0;
  function stop() {
    clearInterval(timer);
    timer = 0;
    for (const one of videos) one.pause();
    button.textContent = "Play";
  }
  button.onclick = () => {
    if (timer) return stop();
    button.textContent = "Pause";
    if (+slider.value === last) go(0);
    const rate = data.fps * row.frames.length / row.curves[0].psnr.length;
    for (const one of videos) { one.currentTime = videos[0].currentTime; one.play(); }
    timer = setInterval(() => {
      if (!videos.length) return +slider.value === last ? stop() : go(+slider.value + 1);
      go(Math.min(last, Math.floor(videos[0].currentTime * data.fps)), false);
      if (videos[0].ended) stop();
    }, 1000 / rate);
  };
  slider.oninput = () => { stop(); go(+slider.value); };
  charts.push(chart(row, "PSNR", curve => curve.psnr, {name: " dB", least: 1}, seek), chart(row, "SSIM", curve => curve.ssim, {name: "", least: 0.001}, seek));
  section.append(make("div", {className: "charts"}, charts));
  if (row.curves.length > 1) section.append(make("div", {style: "margin-top:8px"}, row.curves.map((curve, i) => {
    const key = make("span", {className: "key"}, [make("i"), curve.label]);
    key.firstChild.style.background = colour(i);
    return key;
  })));
  go(Math.max(0, row.frames.indexOf(row.worst)));
  return section;
}

document.getElementById("title").textContent = data.title;
document.title = `equitile compare: ${data.title}`;
for (const [name, text] of data.facts) document.getElementById("facts").append(make("dt", {textContent: name}), make("dd", {textContent: text}));
document.getElementById("rows").append(...data.rows.map(rowOf));
</script>
</body>
</html>
)html";

}  // namespace equitile
