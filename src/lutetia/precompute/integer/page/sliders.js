// What stands for each column: a slider and a field for numbers, a list for categories, a date, a field for text. A column has a
// function `encode`, which makes the codes of its inputs of a value, and `show`, which sets what stands for it.

// How many numbers of a sorted list are below one.
function countBelow(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Let the sample have a value in a column.
function enter({ inputs, encode }, value) {
  encode(value).forEach((code, number) => (x[inputs[number]] = code));
}

function addChoice(column) {
  const { name, inputs, categories } = column;
  const choice = html("select", { id: `input${inputs[0]}` }, ...categories.map(([category]) => html("option", {}, category)));
  column.encode = (value) => categories[Number.isNaN(value) ? 0 : value + 1][1];
  column.show = (value) => (choice.selectedIndex = Number.isNaN(value) ? 0 : value + 1);
  choice.addEventListener("change", () => {
    enter(column, choice.selectedIndex ? choice.selectedIndex - 1 : NaN);
    answer();
  });
  column.show(0);
  enter(column, 0);
  list.append(html("li", {}, html("label", { htmlFor: choice.id }, name), choice));
}

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
  const known = Math.min(seconds, LAST_SECOND), date = new Date(Math.floor(known) * 1000);
  return parts.map((part, number) => 1 + countBelow(edges[number], PARTS[part](known, date)));
}

function addDate(column) {
  const { name, inputs, dates } = column, edges = dates.edges[0], middle = Math.floor(edges[Math.floor(edges.length / 2)] ?? 0);
  const field = html("input", { type: dates.times ? "datetime-local" : "date", id: `input${inputs[0]}`, step: dates.times ? 1 : "any" });
  column.encode = (seconds) => dateCodes(dates, seconds);
  column.show = (seconds) => (field.value = Number.isNaN(seconds) ? "" : new Date(Math.floor(seconds) * 1000).toISOString().slice(0, dates.times ? 19 : 10));
  field.addEventListener("input", () => {
    enter(column, field.valueAsNumber / 1000);
    answer();
  });
  column.show(middle);
  enter(column, field.valueAsNumber / 1000);
  list.append(html("li", {}, html("label", { htmlFor: field.id }, name), field));
}

// An input that no column is known of: a whole number, as the model takes it.
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

// Values to choose from: missing, then one between each two cuts of any input of a column, and beyond the ends.
function stopsOf(cuts, [least, most]) {
  const low = cuts[0] ?? most, high = cuts.at(-1) ?? most;
  const stops = [NaN, least < low ? numberBetween(least, low) : low, ...cuts.slice(1).map((cut, at) => numberBetween(cuts[at], cut))];
  return cuts.length ? [...stops, numberBetween(high, most > high ? most : high + Math.max(Math.abs(high), 1))] : stops;
}

// The slider goes from one value to the next; any other may be typed.
function addNumber(column) {
  const { name, unit, inputs, cuts, trained } = column, all = [...new Set(cuts.flat())].filter((cut) => cut > BELOW_ALL).sort((a, b) => a - b);
  const stops = stopsOf(all, trained ?? [all[0] ?? 0, all.at(-1) ?? 1]);
  const slider = html("input", { type: "range", id: `input${inputs[0]}`, min: 0, max: stops.length - 1 });
  const field = html("input", { type: "number", id: `value${inputs[0]}`, step: "any", placeholder: "missing", "aria-label": `${name}, value` });
  if (trained) field.title = `fitted to ${trained.map(shortNumber).join(" to ")}`;
  column.encode = (value) => cuts.map((own) => (Number.isNaN(value) ? 0 : 1 + countBelow(own, value)));
  const mark = (value) => field.classList.toggle("far", trained !== null && (value < trained[0] || value > trained[1]));
  const slideTo = (value) => (slider.value = Number.isNaN(value) ? 0 : 1 + countBelow(all, value));
  column.show = (value) => {
    field.value = Number.isNaN(value) ? "" : String(value);
    slideTo(value);
    mark(value);
  };
  const change = (value) => {
    mark(value);
    enter(column, value);
    answer();
  };
  slider.addEventListener("input", () => {
    const value = stops[slider.valueAsNumber];
    field.value = Number.isNaN(value) ? "" : String(value);
    change(value);
  });
  field.addEventListener("input", () => {
    slideTo(field.valueAsNumber);
    change(field.valueAsNumber);
  });
  const start = stops[Math.floor(stops.length / 2)];
  column.show(start);
  enter(column, start);
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
