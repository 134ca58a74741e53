// One slider for each input, and its value in the unit of the data where that is known; a list for a column of categories, a
// date for a column of dates, and a field for a column of text.

function addChoice({ name, inputs, categories }) {
  const choice = html("select", { id: `input${inputs[0]}` }, ...categories.map(([category]) => html("option", {}, category)));
  const tell = () => categories[choice.selectedIndex][1].forEach((code, number) => (x[inputs[number]] = code));
  choice.addEventListener("change", () => {
    tell();
    answer();
  });
  choice.selectedIndex = 1;
  tell();
  list.append(html("li", {}, html("label", { htmlFor: choice.id }, name), choice));
}

const LAST_SECOND = Date.UTC(9999, 11, 31, 23, 59, 59) / 1000;
const PARTS = {
  "": (seconds) => seconds,
  year: (_, date) => date.getUTCFullYear(),
  month: (_, date) => date.getUTCMonth() + 1,
  day: (_, date) => date.getUTCDate(),
  weekday: (_, date) => date.getUTCDay() || 7,
  hour: (_, date) => date.getUTCHours(),
};

// The codes of the inputs that are made of a date, in seconds; NaN is missing.
function dateCodes({ parts, edges }, seconds) {
  if (Number.isNaN(seconds)) return parts.map(() => 0);
  const known = Math.min(seconds, LAST_SECOND), date = new Date(known * 1000);
  return parts.map((part, number) => {
    const value = PARTS[part](known, date);
    return 1 + edges[number].filter((edge) => edge < value).length;
  });
}

function addDate({ name, inputs, dates }) {
  const edges = dates.edges[0], middle = edges[Math.floor(edges.length / 2)] ?? 0;
  const start = new Date(Math.floor(middle) * 1000).toISOString().slice(0, dates.times ? 19 : 10);
  const field = html("input", { type: dates.times ? "datetime-local" : "date", id: `input${inputs[0]}`, step: dates.times ? 1 : "any" });
  const tell = () => dateCodes(dates, field.valueAsNumber / 1000).forEach((code, number) => (x[inputs[number]] = code));
  field.addEventListener("input", () => {
    tell();
    answer();
  });
  field.value = start;
  tell();
  list.append(html("li", {}, html("label", { htmlFor: field.id }, name), field));
}

function addSlider(at) {
  const top = model.largest, start = Math.floor(top / 2), shownValue = html("output", {});
  const slider = html("input", { type: "range", id: `input${at}`, min: 0, max: top, value: start });
  const tell = () => {
    x[at] = slider.valueAsNumber;
    shownValue.textContent = model.labels?.[x[at]] ?? String(x[at]);
  };
  slider.addEventListener("input", () => {
    tell();
    answer();
  });
  tell();
  list.append(html("li", {}, html("label", { htmlFor: slider.id }, inputName(at)), slider, shownValue));
}

const BELOW_ALL = -1.7e308; // a cut below this is below every number

// A number of few digits above one and at most another, near the middle.
function numberBetween(low, high) {
  for (let digits = 1; digits < 17; digits++) {
    const number = Number(((low + high) / 2).toPrecision(digits));
    if (number > low && number <= high) return number;
  }
  return high;
}

// One slider for a column of numbers, and a field for its value. The slider goes from one cut of any of its inputs to the next;
// its first stop is no value.
function addNumber({ name, unit, inputs, cuts, trained }) {
  const all = [...new Set(cuts.flat())].filter((cut) => cut > BELOW_ALL).sort((a, b) => a - b), ends = trained ?? [all[0] ?? 0, all.at(-1) ?? 1];
  const first = all[0] ?? ends[1], last = all.at(-1) ?? ends[1], beyond = Math.max(Math.abs(last), 1);
  const stops = [NaN, ends[0] < first ? numberBetween(ends[0], first) : first, ...all.slice(1).map((cut, at) => numberBetween(all[at], cut))];
  if (all.length) stops.push(numberBetween(last, ends[1] > last ? ends[1] : last + beyond));
  const slider = html("input", { type: "range", id: `input${inputs[0]}`, min: 0, max: stops.length - 1, value: Math.floor(stops.length / 2) });
  const field = html("input", { type: "number", id: `value${inputs[0]}`, step: "any", placeholder: "missing", "aria-label": `${name}, value` });
  if (trained) field.title = `fitted to ${shortNumber(ends[0])} to ${shortNumber(ends[1])}`;
  const tell = () => {
    const value = field.valueAsNumber, isFar = trained && (value < ends[0] || value > ends[1]);
    cuts.forEach((own, number) => (x[inputs[number]] = Number.isNaN(value) ? 0 : 1 + own.filter((cut) => cut < value).length));
    field.classList.toggle("far", isFar);
  };
  const slide = () => {
    const value = stops[slider.valueAsNumber];
    field.value = Number.isNaN(value) ? "" : String(value);
    tell();
  };
  slider.addEventListener("input", () => {
    slide();
    answer();
  });
  field.addEventListener("input", () => {
    const value = field.valueAsNumber;
    slider.value = Number.isNaN(value) ? 0 : 1 + all.filter((cut) => cut < value).length;
    tell();
    answer();
  });
  slide();
  list.append(html("li", {}, html("label", { htmlFor: slider.id }, name), slider, html("span", { className: "value" }, field, unit)));
}

function addColumn(column) {
  if (column.text) return addText(column);
  if (column.dates) return addDate(column);
  return column.cuts ? addNumber(column) : addChoice(column);
}

if (model.columns.length) model.columns.forEach(addColumn);
else x.forEach((_, at) => addSlider(at));
answer();
