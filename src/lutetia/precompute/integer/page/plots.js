// Signals, the answers to their windows, and what of a window was looked at, as SVG, whose colours follow the theme by its style.

const LANE = 78, GAP = 12, STRIP = 20, AXIS = 20, LETTER = 7, NARROW = 1.5, COLOURS = 8;

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const fixed = (number) => Math.round(number * 100) / 100;
const box = (className, x, y, width, height, ...children) => svg("rect", { class: className, x: fixed(x), y: fixed(y), width: fixed(Math.max(width, 0.5)), height: fixed(height) }, ...children);
const label = (className, x, y, text) => svg("text", { class: className, x: fixed(x), y: fixed(y) }, text);
const colourOf = (number) => `k${number % COLOURS}`;

// The least and the greatest of some samples.
function endsOf(x, from, to) {
  let low = x[from], high = x[from];
  for (let t = from; t < to; t++) {
    if (x[t] < low) low = x[t];
    if (x[t] > high) high = x[t];
  }
  return [low, high];
}

const scaleOf = ([low, high], top, height) => (value) => top + height - ((value - low) / (high - low || 1)) * height;

// A line through samples; where several fall on a pixel, from their least to their greatest.
function linePath(x, from, to, xOf, yOf) {
  const parts = [], wide = xOf(to) - xOf(from);
  if (to - from <= 2 * wide) {
    for (let t = from; t < to; t++) parts.push(`${fixed(xOf(t + 0.5))} ${fixed(yOf(x[t]))}`);
  } else {
    for (let pixel = 0; pixel < wide; pixel++) {
      const [begin, end] = [pixel, pixel + 1].map((each) => from + Math.floor((each * (to - from)) / wide)), [low, high] = endsOf(x, begin, Math.max(end, begin + 1));
      parts.push(`${fixed(xOf(from) + pixel)} ${fixed(yOf(low))}`, `${fixed(xOf(from) + pixel)} ${fixed(yOf(high))}`);
    }
  }
  return `M${parts.join("L")}`;
}

// One signal of some rows, with its name and its ends in its unit.
function lane(recording, signal, [from, to], width, top) {
  const x = recording.samples[signal], { name, scale } = signals[signal], ends = endsOf(x, from, to);
  const xOf = (row) => ((row - from) / (to - from)) * width, yOf = scaleOf(ends, top + 17, LANE - 20);
  const told = `${name}: ${ends.map((each) => shortNumber(each / scale)).join(" to ")}`;
  return { xOf, yOf, drawn: [svg("path", { class: "signal", d: linePath(x, from, to, xOf, yOf) }), label("name", 2, top + 11, told)] };
}

// What of the recording an answer is drawn over: its step in the middle of its window.
function bandAt(start) {
  const half = Math.min(step, length) / 2;
  return [start + length / 2 - half, start + length / 2 + half];
}

// Windows that follow each other and have one class.
function runsOf(answers, [from, to]) {
  const found = [];
  answers.forEach(({ start, best }) => {
    const [begin, end] = bandAt(start), last = found.at(-1);
    if (end <= from || begin >= to) return;
    if (last && last.best === best && begin - last.end < 1e-6) last.end = end;
    else found.push({ best, begin, end });
  });
  return found;
}

// Bands of the classes; narrow ones come last, so that one window of a class is seen among thousands.
function bands(answers, view, xOf, width, height) {
  const places = new Set(), wide = [], narrow = [];
  for (const { best, begin, end } of runsOf(answers, view)) {
    const left = Math.max(0, xOf(begin)), right = Math.min(width, xOf(end)), key = `${best} ${Math.round(left)}`, name = className(best);
    if (right - left < NARROW && places.has(key)) continue;
    places.add(key);
    const across = Math.max(right - left, NARROW), drawn = right - left < NARROW ? narrow : wide;
    drawn.push(box(`band ${colourOf(best)}`, left, 0, across, height), box(`strip ${colourOf(best)}`, left, height + 3, across, STRIP, svg("title", {}, name)));
    if (name.length * LETTER + 8 < across) drawn.push(label("class", left + 4, height + 17, name));
  }
  return [...wide, ...narrow];
}

// The numbers of windows as a line within their intervals, one of each part of the recording.
function numbers(answers, begins, view, xOf, top) {
  const own = answers.filter(({ start }) => start + length > view[0] && start < view[1]);
  if (!own.length) return [];
  const [low, high] = own.reduce(([low, high], { value, ends }) => [Math.min(low, value, ...ends), Math.max(high, value, ...ends)], [Infinity, -Infinity]);
  const yOf = scaleOf([low, high], top + 17, LANE - 20), at = (start, value) => `${fixed(xOf(start + length / 2))},${fixed(yOf(value))}`;
  const parts = begins.map((begin, part) => own.filter(({ start }) => start >= begin && start < (begins[part + 1] ?? Infinity))).filter((part) => part.length);
  const within = (part) => [...part.map(({ start, ends }) => at(start, ends[0])), ...part.toReversed().map(({ start, ends }) => at(start, ends[1]))];
  return [
    ...(own[0].ends.length ? parts.map((part) => svg("polygon", { class: "within", points: within(part).join(" ") })) : []),
    ...parts.map((part) => svg("polyline", { class: "answer", points: part.map(({ start, value }) => at(start, value)).join(" ") })),
    label("name", 2, top + 11, `answer: ${shortNumber(low)} to ${shortNumber(high)}`),
  ];
}

function axis([from, to], xOf, width, top) {
  const wanted = (to - from) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(wanted));
  const apart = Math.max(1, [1, 2, 5, 10].find((each) => each * power >= wanted) * power), found = [];
  for (let row = Math.ceil(from / apart) * apart; row < to && xOf(row) < width - 30; row += apart) {
    found.push(svg("path", { class: "tick", d: `M${fixed(xOf(row))} ${top}v4` }), label("name", xOf(row) + 2, top + 14, row.toLocaleString("en")));
  }
  return found;
}

const picture = (width, height, told, ...children) => svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": told }, ...children);

// The recording: its signals, bands of the classes or a line of the numbers, and the chosen window.
function chart({ recording, view, shown, answers, start }, width) {
  const height = shown.length * (LANE + GAP), xOf = (row) => ((row - view[0]) / (view[1] - view[0])) * width, isNumber = answers[0]?.value !== undefined;
  const below = height + (isNumber ? LANE + GAP : STRIP + 6);
  const lanes = shown.flatMap((signal, at) => lane(recording, signal, view, width, at * (LANE + GAP)).drawn);
  const begins = recording.begins.filter((begin) => begin > view[0] && begin < view[1]).map((begin) => svg("path", { class: "border", d: `M${fixed(xOf(begin))} 0V${below}` }));
  const left = xOf(start), answered = isNumber ? numbers(answers, recording.begins, view, xOf, height) : bands(answers, view, xOf, width, height);
  const chosen = start === undefined ? [] : [box("chosen", left, 1, xOf(start + length) - left, height - 2)];
  const told = `${recording.title}: ${shown.map((signal) => signals[signal].name).join(", ")}`;
  return picture(width, below + AXIS, told, ...answered, ...lanes, ...begins, ...chosen, ...axis(view, xOf, width, below));
}

// What a mark of `features.js` looks like in the lane of its signal.
function drawnMark({ span, place, level }, { xOf, yOf }, x, start, width, top) {
  if (span) return box("span", xOf(start + span[0]), top + 14, xOf(start + span[1]) - xOf(start + span[0]), LANE - 14);
  if (level !== undefined) return svg("path", { class: "level", d: `M0 ${fixed(yOf(level))}H${fixed(width)}` });
  return svg("circle", { class: "spot", cx: fixed(xOf(start + place + 0.5)), cy: fixed(yOf(x[start + place])), r: 5 });
}

// A window, of the signals that a reason is of, with what it looks at.
function detail(recording, start, { left, right }, width) {
  const inputs = right < 0 ? [left] : [left, right], own = [...new Set(inputs.map(signalOf))], view = [start, start + length];
  const drawn = own.flatMap((signal, at) => {
    const top = at * (LANE + GAP), found = lane(recording, signal, view, width, top), x = recording.samples[signal], w = windowAt(x, start, length);
    const marks = inputs.filter((input) => signalOf(input) === signal).flatMap((input) => FEATURES[featureOf(input).kind].marks(w, featureOf(input).at));
    const [behind, before] = [true, false].map((isSpan) => marks.filter(({ span }) => Boolean(span) === isSpan).map((mark) => drawnMark(mark, found, x, start, width, top)));
    return [...behind, ...found.drawn, ...before];
  });
  const bottom = own.length * (LANE + GAP), xOf = (row) => ((row - start) / length) * width;
  return picture(width, bottom + AXIS, inputs.map(titleOf).join(", "), ...drawn, ...axis(view, xOf, width, bottom));
}
