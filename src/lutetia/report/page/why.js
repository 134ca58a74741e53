// Why it decided: pick an input, choose a rule, point at a detector.

const why = { item: 0, rule: 0, detector: 0, preview: null };

function buildWhy(place) {
  const { shape, items, labels, rules } = story.why;
  why.flat = shape.length === 1;
  why.canvas = html("canvas", { role: "img" });
  why.overlay = svg("svg", { "aria-hidden": "true" });
  why.about = html("p", { className: "small" });
  why.side = html("div");
  why.scores = html("ul", { className: "bars" });
  why.detail = html("div");
  why.features = html("ul", { className: "bars features" });
  const thumbs = items.map((item) => ({ item, canvas: html("canvas", { "aria-hidden": "true" }) }));
  const choices = thumbs.map(({ item, canvas }, at) => {
    const read = labels[item.prediction];
    const wrong = item.label !== null && item.label !== item.prediction;
    const caption = wrong ? html("span", { className: "wrong" }, `${read}, not ${labels[item.label]}`) : html("span", {}, read);
    return { title: `input ${at + 1}, read as ${caption.textContent}`, content: why.flat ? [caption] : [canvas, caption] };
  });
  const pickItem = (at) => Object.assign(why, { item: at, detector: 0, preview: null }) && drawWhy();
  const modes = [...rules, ["input", "The input alone", "The input, with nothing drawn over it."]];
  why.modes = modes;
  why.rule = 0;
  const choicesOfRule = modes.map(([name, title]) => ({ title: title === name ? name : `${title} (${name})`, content: [title] }));
  const segments = radios("rule", "What to show", choicesOfRule, why.rule, (at) => {
    why.rule = at;
    drawWhy();
  }, "segments");
  const scale = html("p", { className: "scale" }, "against", html("i"), "for");
  const picture = why.flat ? why.features : html("div", { className: "picture" }, why.canvas, why.overlay);
  const scores = [html("h3", { className: "sub" }, "All tables together: scores, compared with their mean"), why.scores];
  const look = html("div", {}, picture, scale, why.about);
  if (items.length > 1) place.append(radios("item", "Input", choices, 0, pickItem, "picker"));
  place.append(segments, html("div", { className: "looking" }, look, why.side, html("div", {}, why.detail, ...scores)));
  const all = () => {
    for (const { item, canvas } of thumbs) if (!why.flat) paint(canvas, shape, item.values);
    drawWhy();
  };
  repaints.push(all);
  all();
}

function drawWhy() {
  const { shape, items, labels } = story.why;
  const item = items[why.item];
  const [name, title, about] = why.modes[why.rule];
  const heat = name in item.heat ? item.heat[name] : undefined;
  why.about.replaceChildren(about, heat && title !== name ? html("span", { className: "technical" }, `rule “${name}”`) : "");
  if (!why.flat) {
    paint(why.canvas, shape, item.values, heat);
    why.canvas.setAttribute("aria-label", `input ${why.item + 1}, ${title}${heat ? `: heat map for ${labels[item.target]}` : ""}`);
  }
  drawSide(item);
  drawDetector();
}

function drawSide(item) {
  const { labels } = story.why;
  const known = item.label === null ? "" : item.label === item.prediction ? "correct" : `but it is ${labels[item.label]}`;
  const other = item.target === item.prediction ? "" : `explained: ${labels[item.target]}`;
  const verdict = html("h3", { className: "verdict" }, `Read as ${labels[item.prediction]}`);
  const note = [chances(item.scores), known, other].filter(Boolean).join("; ");
  if (note) verdict.append(html("small", {}, note));
  const mean = item.scores.reduce((total, score) => total + score, 0) / item.scores.length;
  const leads = item.scores.map((score) => score - mean);
  const order = leads.map((_, at) => at);
  if (order.length > 12) order.sort((a, b) => leads[b] - leads[a]).splice(12);
  const bars = order.map((at) => barItem(labels[at], leads[at], largest(leads), true, at === item.target ? "target" : ""));
  why.scores.replaceChildren(...bars);
  const parts = [verdict];
  why.buttons = [];
  if (item.detectors.length) {
    const note = html("p", { className: "small" }, "Each with its bits, highest first, and what its row did for the class. Click one to see what it compared.");
    const list = html("ul", { className: "detectors" });
    const top = largest(item.detectors.map((each) => each.contribution));
    item.detectors.forEach((each, at) => list.append(html("li", {}, detectorButton(each, at, top))));
    parts.push(html("h3", { className: "sub" }, "Tables that counted most"), note, list);
  }
  if (item.comparisons.length) {
    const note = html("p", { className: "small" }, "Beside each: how far the lead over the other classes would fall with the opposite answer.");
    const list = html("ul", { className: "bars features asked" });
    const top = largest(item.comparisons.map(([, effect]) => effect));
    for (const [text, effect] of item.comparisons) list.append(barItem(text, effect, top, true));
    parts.push(html("h3", { className: "sub" }, "Comparisons that counted most"), note, list);
  }
  why.side.replaceChildren(...parts);
}

// The probability of the best class, and the runner-up with its own.
function chances(scores) {
  const top = Math.max(...scores);
  const odds = story.why.shares ? scores : scores.map((score) => Math.exp(score - top));
  const total = odds.reduce((sum, each) => sum + each, 0) || 1;
  const [first, second] = odds.map((_, at) => at).sort((a, b) => odds[b] - odds[a]);
  const percent = (at) => `${((100 * odds[at]) / total).toFixed(1)}%`;
  return `${percent(first)}, then ${story.why.labels[second]} with ${percent(second)}`;
}

function detectorButton(detector, at, most) {
  const { number, bits, contribution } = detector;
  const [label, bar, value] = barItem(`#${number}`, contribution, most, true).children;
  const digits = [...bits].reverse().join("");
  const name = `table ${number}, bits ${digits}, contribution ${show(contribution)}`;
  const button = html("button", { type: "button", "aria-pressed": at === why.detector, "aria-label": name });
  button.append(label, html("code", {}, digits), bar, value);
  const preview = (to) => () => {
    why.preview = to;
    drawDetector();
  };
  button.addEventListener("mouseenter", preview(at));
  button.addEventListener("focus", preview(at));
  button.addEventListener("mouseleave", preview(null));
  button.addEventListener("blur", preview(null));
  button.addEventListener("click", () => {
    why.detector = at;
    drawDetector();
  });
  why.buttons.push(button);
  return button;
}
