// From pixels to votes: the circuit, run on an image; which tables voted, and what a chosen one reads.

const votes = { item: 0, values: [], table: 0 };
const SQUARE = 9, LONGEST = 40; // tables in a line

// The bits behind the thresholds and behind every layer, then the counts of the classes.
function runVotes({ bits, layers, classes }, values) {
  const given = [bits.map(([pixel, constant]) => Number(values[pixel] > constant))];
  for (const [, tables] of layers) {
    const before = given.at(-1);
    given.push(tables.map(([reads, rows]) => Number(rows[rowOf(reads, before)])));
  }
  const last = given.at(-1);
  const counts = classes.map(([first, own, worth]) => own.reduce((sum, table, at) => sum + worth[at] * last[table], first));
  return { given, counts, answer: counts.indexOf(max(...counts)) };
}

const rowOf = (reads, bits) => reads.reduce((address, read) => 2 * address + bits[read], 0);

// The numbers of the input bits that a bit of a layer depends on; those that it reads itself and those behind other tables.
function behindBit(layer, bit, found = { near: new Set(), far: new Set() }, deep = false) {
  const [reads] = story.votes.layers[layer][1][bit];
  for (const read of reads) {
    if (layer === 0) found[deep ? "far" : "near"].add(read);
    else behindBit(layer - 1, read, found, deep || !isWire(story.votes.layers[layer - 1][1][read]));
  }
  return found;
}

// Whether a table hands its only bit on as it is.
const isWire = ([reads, rows]) => reads.length === 1 && rows === "01";

// A square of the image for each input, a cell for each pixel.
function pixelGrid(name) {
  const { width, height } = sizes(story.why.shape);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name, class: "pixels" });
}

function buildVotes(place) {
  const { labels, items } = story.why;
  const { bits, classes } = story.votes;
  votes.steps = [...new Set(bits.map(([, constant]) => constant))].sort((a, b) => a - b);
  votes.owners = classes.map(([, own]) => own);
  const canvases = items.map(() => html("canvas", { "aria-hidden": "true" }));
  const choices = canvases.map((canvas, at) => ({ title: `image ${at + 1}`, content: [canvas] }));
  const pick = (at) => {
    Object.assign(votes, { item: at, values: [...items[at].values] });
    drawVotes();
  };
  votes.image = pixelGrid("The image. Click a pixel to turn it on or off.");
  votes.maps = votes.steps.map((constant) => pixelGrid(`Bits: the pixel is greater than ${constant}`));
  votes.squares = html("div", { className: "voters" });
  votes.said = html("p", { className: "verdict", "aria-live": "polite" });
  votes.told = html("div", {});
  const last = story.votes.layers.at(-1)[1].length - 1;
  votes.choose = html("input", { type: "number", min: 0, max: last, value: 0, "aria-label": "Table to look at" });
  votes.choose.addEventListener("input", () => chooseTable(Number(votes.choose.value)));
  votes.image.addEventListener("click", (event) => flipPixel(event));
  const figures = [html("figure", {}, votes.image, html("figcaption", {}, "The image. Click a pixel to turn it on or off."))];
  votes.maps.forEach((map, at) => {
    const text = `Bits: is a pixel greater than ${votes.steps[at]}? Pale pixels are read by no table.`;
    figures.push(html("figure", {}, map, html("figcaption", {}, text)));
  });
  const key = [html("i", { className: "near" }), " read by the chosen table", html("i", { className: "far" }), " read by a table that it reads"];
  const left = html("div", {}, html("div", { className: "maps" }, ...figures), html("p", { className: "small wires" }, ...key));
  const one = html("h3", { className: "sub" }, "Table ", votes.choose);
  const about = html("p", { className: "small" }, "A square is a table of a class; a filled one votes for it. The class with the most votes wins.");
  const right = html("div", {}, votes.said, votes.squares, about, one, votes.told);
  place.append(radios("image", "Image", choices, 0, pick, "picker"), html("div", { className: "voting" }, left, right));
  repaints.push(() => items.forEach((item, at) => paint(canvases[at], story.why.shape, item.values)));
  repaints.at(-1)();
  votes.values = [...items[0].values];
  const first = runVotes(story.votes, votes.values);
  votes.table = votes.owners[first.answer].find((table) => first.given.at(-1)[table]) ?? 0;
  votes.labels = labels;
  drawVotes();
}

function chooseTable(table) {
  if (!(table >= 0 && table < story.votes.layers.at(-1)[1].length)) return;
  votes.table = table;
  drawVotes();
}

function flipPixel(event) {
  const { width, height } = sizes(story.why.shape);
  const box = votes.image.getBoundingClientRect();
  const row = Math.floor(((event.clientY - box.top) / box.height) * height);
  const column = Math.floor(((event.clientX - box.left) / box.width) * width);
  const pixel = row * width + column;
  if (!(pixel >= 0 && pixel < votes.values.length)) return;
  votes.values[pixel] = votes.values[pixel] * 2 > story.votes.top ? 0 : story.votes.top;
  drawVotes();
}

function drawVotes() {
  const run = runVotes(story.votes, votes.values);
  const { top, layers } = story.votes;
  const marks = behindBit(layers.length - 1, votes.table);
  drawPixels(votes.image, (pixel) => votes.values[pixel] / top, new Map());
  votes.steps.forEach((constant, at) => drawMap(votes.maps[at], constant, run.given[0], marks));
  drawSquares(run);
  const label = story.why.items[votes.item].label;
  const changed = votes.values.some((value, at) => value !== story.why.items[votes.item].values[at]);
  const truth = changed ? "an image that you changed" : label === null ? "" : `the label is ${votes.labels[label]}`;
  const said = `${run.counts[run.answer]} votes for ${votes.labels[run.answer]}`;
  votes.said.replaceChildren(said, html("small", {}, truth));
  tellTable(run);
}

function drawPixels(place, shade, marks) {
  const { width, height } = sizes(story.why.shape);
  const cells = [];
  for (let pixel = 0; pixel < width * height; pixel++) {
    const spot = { x: pixel % width, y: Math.floor(pixel / width), width: 1, height: 1 };
    const strength = shade(pixel);
    if (strength === null) cells.push(svg("rect", { ...spot, class: "unread" }));
    else if (strength > 0) cells.push(svg("rect", { ...spot, class: "ink", "fill-opacity": strength }));
  }
  for (const [pixel, kind] of marks) {
    const spot = { x: (pixel % width) + 0.08, y: Math.floor(pixel / width) + 0.08, width: 0.84, height: 0.84 };
    cells.push(svg("rect", { ...spot, class: kind }));
  }
  place.replaceChildren(...cells);
}

function drawMap(place, constant, bits, { near, far }) {
  const shades = new Map(), marks = new Map();
  story.votes.bits.forEach(([pixel, own], bit) => {
    if (own !== constant) return;
    shades.set(pixel, bits[bit]);
    if (far.has(bit)) marks.set(pixel, "far");
    if (near.has(bit)) marks.set(pixel, "near");
  });
  drawPixels(place, (pixel) => (shades.has(pixel) ? shades.get(pixel) : null), marks);
}

// One square for each table of a class: filled where it votes.
function drawSquares({ given, counts, answer }) {
  const last = given.at(-1);
  const line = min(LONGEST, max(20, ...votes.owners.map((own) => own.length)));
  const rows = votes.owners.map((own, number) => {
    const squares = own.map((table, at) => {
      const kind = `${last[table] ? "yes" : "no"}${table === votes.table ? " chosen" : ""}`;
      const spot = { x: (at % line) * SQUARE + 1, y: Math.floor(at / line) * SQUARE + 1 };
      const square = svg("rect", { ...spot, width: SQUARE - 2, height: SQUARE - 2, class: kind });
      square.addEventListener("click", () => chooseTable(table));
      return square;
    });
    const high = Math.ceil(own.length / line) * SQUARE;
    const drawn = svg("svg", { viewBox: `0 0 ${line * SQUARE} ${high}`, "aria-hidden": "true" }, ...squares);
    const name = html("b", {}, votes.labels[number]);
    return html("div", { className: number === answer ? "row won" : "row" }, name, drawn, html("span", {}, `${counts[number]}`));
  });
  votes.squares.replaceChildren(...rows);
}

function tellTable({ given }) {
  const { layers } = story.votes;
  votes.choose.value = votes.table;
  const [reads, rows] = layers.at(-1)[1][votes.table];
  const before = given.at(-2);
  const owner = votes.owners.findIndex((own) => own.includes(votes.table));
  const bits = reads.map((read) => before[read]).join("");
  const row = rowOf(reads, before);
  const said = Number(rows[row]) ? `votes for ${votes.labels[owner]}` : `does not vote for ${votes.labels[owner]}`;
  const items = reads.map((read) => html("li", {}, html("b", {}, `${before[read]}`), ` ${nameBit(layers.length - 1, read)}`));
  const line = reads.length ? `It reads ${bits}, which is row ${row} of ${rows.length}, and ${said}.` : `It is constant and ${said}.`;
  votes.told.replaceChildren(html("p", {}, line), html("ul", { className: "reads" }, ...items));
}

// What a bit that a layer reads is: a pixel, or the answer of a table.
function nameBit(layer, read) {
  if (layer === 0) {
    const [pixel, constant] = story.votes.bits[read];
    const { width } = sizes(story.why.shape);
    return `pixel (${Math.floor(pixel / width)}, ${pixel % width}) > ${constant}`;
  }
  const [name, tables] = story.votes.layers[layer - 1];
  const [reads] = tables[read];
  if (isWire(tables[read])) return nameBit(layer - 1, reads[0]);
  const parts = reads.map((each) => nameBit(layer - 1, each));
  return `table ${read} of ${name}, which reads ${parts.join(", ")}`;
}

if (story.votes) buildVotes(byId("votes"));
