// What every classifier page shows: the answer, the scores, and the detectors that spoke loudest.

const MOST = 6;
const x = new Int32Array(model.nInputs);
let loud = [], picked = -1, waiting = 0;

// For whoever scripts the page: the sample that is shown, what `loud` lists, probabilities of classes, and why the answer is given.
const columnsOf = () => model.columns.map(({ inputs }) => inputs);
Object.assign(window.lutetia, {
  sample: () => Array.from(x),
  loudest: () => loudest(x, MOST),
  chances: (sample) => Array.from(chancesOf(runStages(sample))),
  reasons: reasonsInWords,
});

const CHANNELS = model.shape.length === 3 && model.shape[0] === 3 ? ["red of ", "green of ", "blue of "] : [];
const channelName = (number) => CHANNELS[Math.floor(number / (model.shape.at(-1) * model.shape.at(-2)))] ?? "";
// What a count counts; nothing for a pixel.
function patternName(number) {
  if (number < 0) return undefined;
  const [detector, address, region] = model.patches.counted.slice(number * 3, number * 3 + 3);
  return `pattern ${address} of detector ${detector} in ${model.patches.names[region]}`;
}
const inputName = (number) => model.features[number] ?? (model.patches && patternName(number - nPixels)) ?? (model.shape.length > 1 ? `${channelName(number)}pixel ${Math.floor(number / model.shape.at(-1)) % model.shape.at(-2)},${number % model.shape.at(-1)}` : `x${number}`);

// What an input is compared with: in the unit of the data where that is known.
function constantName(input, constant) {
  const edge = model.edges[input]?.[constant - 1];
  if (edge !== undefined) return typeof edge === "number" ? shortNumber(edge) : edge;
  return constant === 0 && model.edges[input] ? "missing" : constant;
}

// How often a pattern has to be found, to be above an edge of its count.
const countEdge = (input, constant) => model.patches.edges[model.patches.starts[input] + constant - 1] ?? constant;

function answer() {
  const scores = runStages(x), best = greatest(scores);
  if (scores.length === 1) {
    const ends = interval(x, scores[0]).map(shortNumber);
    byId("answer").textContent = shortNumber(numberOf(scores[0]));
    byId("interval").textContent = ends.length ? `${ends[0]} to ${ends[1]} in 9 of 10 cases` : "";
    byId("scores").replaceChildren();
  } else {
    byId("answer").textContent = className(best);
    const score = html("li", {}, html("span", {}, "score"), html("span", {}), html("span", {}, told(scoreOf(scores), { maximumSignificantDigits: 3 })));
    if (model.findsUnusual) byId("scores").replaceChildren(score);
    else byId("scores").replaceChildren(...Array.from(chancesOf(scores), (chance, c) => bar(className(c), 100 * chance, percent(chance), c === best)));
  }
  listReasons();
  clearTimeout(waiting);
  waiting = setTimeout(explain, 30);
}

// Several names as one phrase.
function chosenNames(chosen) {
  const shown = chosen.length > 4 ? [...chosen.slice(0, 3), `${chosen.length - 3} others`] : chosen;
  return shown.length > 1 ? `${shown.slice(0, -1).join(", ")} or ${shown.at(-1)}` : shown[0];
}

// A comparison of a column of categories, with a constant or with another order of the same column: the categories it lets through.
function categoryText({ name, inputs, categories }, left, right, constant, yes) {
  const code = (codes, input) => codes[inputs.indexOf(input)];
  const passes = ([, codes]) => code(codes, left) > (right < 0 ? constant : code(codes, right)) === yes;
  const chosen = categories.filter(passes).map(([category]) => category);
  if (yes && chosen.length === categories.length - 1) return `${name} is known`;
  return `${name} is ${chosenNames(chosen.filter((each, at) => at || each !== "missing" || x[left] === 0))}`;
}

const categoriesOf = (left) => model.columns.find(({ inputs, categories }) => categories.length && inputs.includes(left));

// Of several numbers that one input is more than, or at most, the nearest says it all.
function nearest(found) {
  const bounds = (one, other) => one.left === other.left && one.answer === other.answer && other.right < 0;
  const isNearer = (one, other) => (one.answer ? other.constant > one.constant : other.constant < one.constant);
  const first = (one) => found.findIndex((other) => bounds(one, other) && other.constant === one.constant);
  return found.filter((one, at) => one.right >= 0 || categoriesOf(one.left) || (first(one) === at && !found.some((other) => bounds(one, other) && isNearer(one, other))));
}

// The column of numbers that is several inputs, of which two of one cut each ask for an interval.
const numbersOf = (left) => model.columns.find(({ inputs, cuts }) => cuts && inputs.includes(left));

function intervalText({ name, inputs, cuts }, left, right, yes) {
  const [low, high] = [left, right].map((input) => cuts[inputs.indexOf(input)][0]);
  return `${name} ${yes ? "in" : "not in"} (${low < -1.7e308 ? "−∞" : shortNumber(low)}, ${shortNumber(high)}]`;
}

function comparisonText({ left, right, constant, answer: yes }) {
  const column = categoriesOf(left);
  if (column && (right < 0 || column.inputs.includes(right))) return categoryText(column, left, right, constant, yes);
  const numbers = right < 0 ? undefined : numbersOf(left);
  if (numbers && numbers.inputs.includes(right)) return intervalText(numbers, left, right, yes);
  const other = right < 0 ? (model.patches && left >= nPixels ? countEdge(left, constant) : constantName(left, constant)) : inputName(right) + (model.columns.length || (model.patches && right >= nPixels) ? " by rank" : "");
  const word = model.words?.[left];
  if (word && right < 0) return constant === 0 ? `${word[0]} is ${yes ? "known" : "missing"}` : `${word[0]} ${yes ? "contains" : "lacks"} ${word[1]}`;
  if (right < 0 && other === "missing") return `${inputName(left)} is ${yes ? "known" : "missing"}`;
  return `${inputName(left)} ${yes ? ">" : "≤"} ${other}`;
}

function explain() {
  loud = loudest(x, MOST);
  picked = -1;
  const most = Math.max(...loud.map(({ loss }) => Math.abs(loss)), 1);
  byId("loud").replaceChildren(...loud.map(({ u, loss }, at) => {
    const text = nearest(comparisons(x, u)).map(comparisonText);
    const button = html("button", { type: "button", title: text.join(", ") }, html("span", {}, `table ${u}`), effectBar(loss, most), html("span", {}, told(loss * model.scoreUnit, { maximumSignificantDigits: 3 })));
    button.addEventListener("click", () => pick(picked === at ? -1 : at));
    return html("li", {}, button, html("p", { className: "small" }, text.join(", ")));
  }));
  byId("quiet").hidden = loud.length > 0;
  pick(-1);
}

const columnName = (input) => model.columns.find(({ inputs }) => inputs.includes(input))?.name ?? inputName(input);

// A reason: a comparison, or, where tables vote, a column.
function reasonText({ left, right, bit, isAbove }) {
  if (bit === undefined) return columnName(left);
  return comparisonText({ left, right, constant: model.stages[0].constant[bit], answer: isAbove });
}

// The reasons for the answer, those that read alike as one: different orders of categories may ask the same.
function reasonsInWords() {
  const effects = new Map();
  for (const each of reasonsOf(x, columnsOf())) effects.set(reasonText(each), (effects.get(reasonText(each)) ?? 0) + each.effect);
  return [...effects].sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
}

function listReasons() {
  if (!byId("reasons")) return;
  const found = reasonsInWords().slice(0, MOST_REASONS), most = Math.max(...found.map(([, effect]) => Math.abs(effect)));
  byId("reasons").replaceChildren(...found.map(([text, effect]) => (
    html("li", {}, html("span", { title: text }, text), effectBar(effect, most), html("span", {}, told(effect, { maximumSignificantDigits: 3 })))
  )));
}

// Show one detector alone, or all of them.
function pick(at) {
  picked = at;
  byId("loud").querySelectorAll("button").forEach((button, number) => button.setAttribute("aria-pressed", String(number === at)));
  document.dispatchEvent(new Event("loud"));
}
