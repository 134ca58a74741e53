// One table: its pairs on the picture, what it compared, and the row that the answers chose.

function drawDetector() {
  const { items } = story.why;
  const item = items[why.item];
  const at = why.preview ?? why.detector;
  const detector = item.detectors[at];
  why.buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === why.detector));
  if (why.flat) drawFeatures(item, detector);
  else drawPairs(detector);
  if (!detector) return why.detail.replaceChildren();
  const pairs = html("ol", { className: "pairs" });
  // The highest bit first, as the row's number is written.
  detector.anchors.forEach((pair, r) => pairs.prepend(pairItem(item, detector, r)));
  const row = html("ul", { className: "bars" });
  const most = largest(detector.values);
  const last = detector.outputs.length === story.why.labels.length;
  detector.values.forEach((value, o) => {
    const name = last ? story.why.labels[o] : detector.outputs[o];
    row.append(barItem(name, value, most, true, last && o === item.target ? "target" : ""));
  });
  const bits = [...detector.bits].reverse().join("");
  const chosen = `Bits ${bits} are row ${detector.row}: what it adds, ${last ? "by class" : "by output"}`;
  why.detail.replaceChildren(html("h3", { className: "sub" }, `What table #${detector.number} compared`), pairs, html("h3", { className: "sub" }, chosen), row);
}

// Past the inputs b numbers a constant.
function pairItem(item, detector, r) {
  const [[a, b], bit] = [detector.anchors[r], detector.bits[r]];
  const n = item.values.length;
  const right = b < n ? `${placeName(b)} ${showValue(item.values[b])}` : showValue(detector.constants[b - n]);
  const text = `${placeName(a)} ${showValue(item.values[a])} ${bit ? ">" : "≤"} ${right}`;
  return html("li", {}, html("b", {}, String(r + 1)), html("span", {}, text), html("code", {}, String(bit), html("small", {}, ` × ${2 ** r}`)));
}

// Row and column of a pixel; the name of a feature.
function placeName(at) {
  const { height, width } = sizes(story.why.shape);
  if (why.flat) return story.why.features[at] ?? `x${at}`;
  const pixel = at % (height * width);
  return `(${Math.floor(pixel / width)}, ${pixel % width})`;
}

function drawPairs(detector) {
  const { height, width } = sizes(story.why.shape);
  why.overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const heated = why.modes[why.rule][0] in story.why.items[why.item].heat;
  why.overlay.replaceChildren(...(heated ? outlinePaths(story.why.items[why.item].values, story.why.shape) : []));
  if (!detector) return;
  const centre = (at) => [(at % width) + 0.5, Math.floor((at % (height * width)) / width) + 0.5];
  const radius = 0.024 * max(width, height);
  const [lines, dots] = [[], []];
  const n = story.why.items[why.item].values.length;
  detector.anchors.forEach(([a, b], r) => {
    const [[x1, y1], [x2, y2]] = [centre(a), centre(b < n ? b : a)];
    for (const name of ["halo", "pair"]) lines.push(svg("line", { x1, y1, x2, y2, class: name }));
    // The greater of the two is filled.
    const ends = [[x1, y1, detector.bits[r]], [x2, y2, !detector.bits[r]]];
    for (const [x, y, more] of b < n ? ends : ends.slice(0, 1)) {
      const dot = svg("circle", { cx: x, cy: y, r: radius * 1.35, class: more ? "more" : "" });
      const text = svg("text", { x, y: y + radius * 0.62, class: more ? "more" : "" }, String(r + 1));
      text.style.fontSize = `${radius * 1.7}px`;
      dots.push(dot, text);
    }
  });
  why.overlay.append(...lines, ...dots);
}

function drawFeatures(item, detector) {
  const [name] = why.modes[why.rule];
  const values = item.heat[name] ?? item.values;
  const anchors = new Set(detector ? detector.anchors.flat() : []);
  const order = values.map((_, at) => at).sort((a, b) => abs(values[b]) - abs(values[a])).slice(0, 24);
  const most = largest(values);
  why.features.replaceChildren();
  for (const at of order) {
    const text = item.texts[at] ?? `${placeName(at)} = ${showValue(item.values[at])}`;
    why.features.append(barItem(text, values[at], most, true, anchors.has(at) ? "anchor" : ""));
  }
}

if (story.why) buildWhy(byId("why"));
