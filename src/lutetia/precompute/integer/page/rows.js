// A file of rows: the answer to each, one of them to look at, and all of them to keep.

const LARGEST_TABLE = 1 << 27, TURN = 25; // bytes, milliseconds
const table = { names: [], rows: [], values: [], answers: [], at: 0, title: "", opened: 0 };

// The values of the columns of the model in each row of a file.
function readTable(bytes) {
  const { names, rows } = readCells(decoded(bytes));
  const values = model.columns.map((column) => {
    const at = names.indexOf(column.name);
    if (at < 0) refuse(`there is no column ${quoted(column.name)}, which the model was fitted to`);
    return rows.map(({ cells, line }) => {
      try {
        return valueIn(column, cells[at]);
      } catch (error) {
        return refuse(`line ${line}, column ${quoted(column.name)}: ${error.message}`);
      }
    });
  });
  return { names, rows: rows.map(({ cells }) => cells), values };
}

// The answer to a row: the number of a class and the probabilities, or a number and the ends of its interval.
function answerTo(values, row) {
  const sample = Int32Array.from(x);
  model.columns.forEach(({ inputs, encode }, column) => encode(values[column][row]).forEach((code, number) => (sample[inputs[number]] = code)));
  const scores = runStages(sample);
  if (scores.length === 1) return { value: numberOf(scores[0]), ends: interval(sample, scores[0]) };
  return { best: greatest(scores), chances: chancesOf(scores), score: scoreOf(scores) };
}

// The answers to all rows, some at a time, so that the page stays awake; undefined if another file is opened meanwhile.
async function answersTo({ rows, values }, title) {
  const answers = [], own = ++table.opened;
  for (let until = performance.now() + TURN; answers.length < rows.length && own === table.opened; ) {
    answers.push(answerTo(values, answers.length));
    if (performance.now() < until) continue;
    sayOfFile(`${title}: ${answers.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows answered.`, false);
    await new Promise((resume) => setTimeout(resume));
    until = performance.now() + TURN;
  }
  return own === table.opened ? answers : undefined;
}

// How good the answers are, where the file knows better.
function quality({ names, rows, answers }) {
  const at = names.indexOf(model.target);
  if (at < 0) return "";
  const known = rows.map((cells) => cells[at]);
  if (answers[0].best !== undefined) {
    const right = known.filter((cell, row) => cell === className(answers[row].best)).length;
    return ` ${right.toLocaleString("en")} of ${known.length.toLocaleString("en")} have the class that the column ${quoted(model.target)} says.`;
  }
  const misses = known.map((cell, row) => Math.abs(measuredIn(cell, model.targetUnit) - answers[row].value)).filter((each) => !Number.isNaN(each));
  const mean = misses.reduce((sum, each) => sum + each, 0) / misses.length;
  return misses.length ? ` On average the answers are ${shortNumber(mean)}${model.targetUnit ? ` ${model.targetUnit}` : ""} from the column ${quoted(model.target)}.` : "";
}

function summary({ rows, answers }) {
  const count = rows.length === 1 ? "1 row" : `${rows.length.toLocaleString("en")} rows`;
  if (answers[0].best === undefined) return `${count}.`;
  const counts = Array.from(answers[0].chances, (_, c) => answers.filter(({ best }) => best === c).length);
  const told = [...counts.keys()].filter((c) => counts[c]).sort((a, b) => counts[b] - counts[a]).map((c) => `${className(c)} ${counts[c].toLocaleString("en")}`);
  return `${count}: ${told.slice(0, 8).join(", ")}${told.length > 8 ? " and others" : ""}.`;
}

// The file with a column for each answer, as `lutetia predict --csv FILE --keep` writes it.
function withAnswers({ names, rows, answers }) {
  const title = model.target ? `predicted ${model.target}` : "prediction", [{ best, chances, ends }] = answers;
  const ofClass = (answer) => [className(answer.best), answer.chances[answer.best], ...answer.chances];
  const ofNumber = ({ value, ends }) => [value, ...ends], ofUnusual = ({ best, score }) => [best ? "yes" : "no", score];
  const numbers = [title, ...(ends?.length ? [`${title} low`, `${title} high`] : [])];
  const classes = [title, "probability", ...Array.from(chances ?? [], (_, c) => `probability of ${className(c)}`)];
  const [header, told] = model.findsUnusual ? [["unusual", "score"], ofUnusual] : best === undefined ? [numbers, ofNumber] : [classes, ofClass];
  const cell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return [[...names, ...header], ...rows.map((cells, row) => [...cells, ...told(answers[row]).map(String)])].map((cells) => `${cells.map(cell).join(",")}\n`).join("");
}

function showRow(number) {
  const at = Math.min(Math.max(0, Math.floor(number) || 0), table.rows.length - 1);
  table.at = at;
  byId("row").value = at;
  byId("earlier").disabled = at === 0;
  byId("later").disabled = at === table.rows.length - 1;
  model.columns.forEach((column, place) => {
    column.show(table.values[place][at]);
    enter(column, table.values[place][at]);
  });
  answer();
}

function sayOfFile(text, isBad) {
  byId("opened").textContent = text;
  byId("opened").classList.toggle("bad", isBad);
}

async function openTable(file) {
  if (!file) return;
  try {
    if (file.size > LARGEST_TABLE) refuse(`the file has ${Math.round(file.size / 2 ** 20).toLocaleString("en")} MB, expected ${LARGEST_TABLE / 2 ** 20} at most`);
    const read = readTable(new Uint8Array(await file.arrayBuffer()));
    const answers = await answersTo(read, file.name);
    if (!answers) return;
    Object.assign(table, read, { title: file.name, answers });
    sayOfFile(`${table.title}: ${summary(table)}${quality(table)}`, false);
    byId("row").max = table.rows.length - 1;
    byId("rows").hidden = false;
    showRow(0);
  } catch (error) {
    sayOfFile(`${file.name}: ${error.message}`, true);
  }
}

function save() {
  const link = html("a", { href: URL.createObjectURL(new Blob([withAnswers(table)], { type: "text/csv" })), download: table.title.replace(/(\.[^.]*)?$/, " with answers.csv") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

if (byId("table")) {
  byId("table").addEventListener("change", ({ target }) => openTable(target.files[0]));
  byId("row").addEventListener("change", ({ target }) => showRow(target.valueAsNumber));
  byId("earlier").addEventListener("click", () => showRow(table.at - 1));
  byId("later").addEventListener("click", () => showRow(table.at + 1));
  byId("save").addEventListener("click", save);
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    openTable(event.dataTransfer.files[0]);
  });
}

// For whoever scripts the page: a CSV file, as bytes, with answers, as a text.
window.lutetia.predict = (bytes) => {
  const read = readTable(bytes);
  return withAnswers({ ...read, answers: read.rows.map((_, row) => answerTo(read.values, row)) });
};
