// A CSV file as names and cells, by the rules of `lutetia predict`: see `lutetia.training.tables`.

const MARKS = [",", ";", "\t", "|"]; // that may stand between cells
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const AROUND = new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "g"), FILLED = new RegExp(`[^${SPACE}]`);
const NUMBER = /^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[-+]?[0-9]+)?$/i;
const DECIMAL_COMMA = new RegExp(`^([-+]?[0-9]*),([0-9]+(?:[eE][-+]?[0-9]+)?(?: ?[^${SPACE}0-9.,;:+\\-*/_][^${SPACE},;:]{0,11})?)$`, "u");
const LONGEST_CELL = 131072, LARGEST_FILE = 1 << 27, SHOWN = 40; // characters, bytes, characters of a cell in a message

const isNumber = (cell) => NUMBER.test(cell) && Number.isFinite(Number(cell));
const quoted = (cell) => `“${cell.length > SHOWN ? `${cell.slice(0, SHOWN)}…` : cell}”`;

function decoded(bytes) {
  const [first, second] = bytes, name = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
  try {
    return new TextDecoder(name, { fatal: true }).decode(bytes);
  } catch {
    return refuse(`the file is not ${name.slice(0, 6).toUpperCase()}, expected a CSV file saved as UTF-8`);
  }
}

// The rows that hold anything, and the line where each ends, as Python's csv reads them.
function rowsOf(text, mark, most = Infinity) {
  const rows = [];
  let at = 0, line = 0;
  while (at < text.length && rows.length < most) {
    const cells = [];
    for (let isEnd = false; !isEnd; ) {
      let cell = "";
      while (text[at] === " ") at++;
      if (text[at] === '"') {
        const begin = at++;
        for (let close = 0; close >= 0; ) {
          close = text.indexOf('"', at);
          cell += close < 0 ? text.slice(at) : text.slice(at, close);
          at = close < 0 ? text.length : close + 1;
          if (close < 0 || text[at] !== '"') break;
          cell += text[at++];
        }
        line += (text.slice(begin, at).match(/\r\n|\r|\n/g) ?? []).length;
      }
      const begin = at;
      while (at < text.length && text[at] !== mark && text[at] !== "\n" && text[at] !== "\r") at++;
      cell += text.slice(begin, at);
      if (cell.length > LONGEST_CELL) refuse(`line ${line + 1}: a cell of more than ${LONGEST_CELL.toLocaleString("en")} characters, expected a shorter one, or a quote that closes it`);
      cells.push(cell.replace(AROUND, ""));
      isEnd = text[at] !== mark || at >= text.length;
      at += text.startsWith("\r\n", at) ? 2 : 1;
    }
    line++;
    if (cells.some((cell) => cell)) rows.push({ cells, line });
  }
  return rows;
}

// How many cells a mark makes of the first line that holds anything.
function countCells(text, mark) {
  const filled = text.search(FILLED), begin = Math.max(text.lastIndexOf("\n", filled), text.lastIndexOf("\r", filled)) + 1;
  try {
    return filled < 0 ? 0 : rowsOf(text.slice(begin), mark, 1)[0].cells.length;
  } catch {
    return 0;
  }
}

// Whether the first row holds names: words in most of the columns that are numbers in the next.
function hasNames([{ cells: first }, second]) {
  const numbers = (second?.cells ?? []).flatMap((cell, at) => (isNumber(cell) ? [at] : []));
  const some = numbers.length ? numbers : [...first.keys()];
  return 2 * some.filter((at) => at >= first.length || !isNumber(first[at])).length > some.length;
}

// The names of the columns, and the rows below them.
function readCells(text) {
  const counts = MARKS.map((mark) => countCells(text, mark)), mark = MARKS[counts.indexOf(Math.max(...counts))], rows = rowsOf(text, mark);
  if (!rows.length) refuse("the file is empty, expected rows of values");
  if (mark !== "," && !rows.some(({ cells }) => cells.some((cell) => cell.includes(".") && isNumber(cell)))) {
    for (const row of rows) row.cells = row.cells.map((cell) => cell.replace(DECIMAL_COMMA, "$1.$2"));
  }
  const header = hasNames(rows) ? rows.shift().cells : null, width = (header ?? rows[0].cells).length;
  for (const { cells, line } of rows) if (cells.length !== width) refuse(`line ${line}: ${cells.length} columns, expected ${width}`);
  if (!rows.length) refuse("the file has column names and no rows below them, expected rows of values");
  const names = Array.from({ length: width }, (_, at) => header?.[at] || `column ${at}`), twice = names.find((name, at) => names.indexOf(name) < at);
  if (twice !== undefined) refuse(`there are two columns named ${quoted(twice)}, expected every name once`);
  return { names, rows };
}
