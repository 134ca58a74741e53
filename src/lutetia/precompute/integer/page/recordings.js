// A recording from a CSV file: whole numbers of each signal.

// A value as a sample: the nearest whole number of steps, of two the even one, and beyond the ends the end.
function sampleOf(value, scale) {
  const { least, most } = model.windows, own = Math.min(Math.max(value * scale, least), most), below = Math.floor(own), rest = own - below;
  return below + (rest > 0.5 || (rest === 0.5 && below % 2) ? 1 : 0);
}

// The recording of a file of bytes: samples of each signal, the rows where series begin, and what these are called.
function readRecording(bytes, title) {
  const { names, rows } = readCells(decoded(bytes)), { missing, words, series } = model.windows;
  const lacks = (cell) => missing.includes(cell.toLowerCase()), hasNone = (cell) => lacks(cell) || words.includes(cell.toLowerCase());
  const samples = signals.map(({ name, scale }) => {
    const at = names.indexOf(name), own = new Int32Array(rows.length);
    if (at < 0) refuse(`there is no column ${quoted(name)}, a signal of the model`);
    rows.forEach(({ cells, line }, row) => {
      const cell = cells[at];
      if (hasNone(cell)) refuse(`line ${line}, column ${quoted(name)} is empty, expected a sample: fill it in`);
      if (!isNumber(cell)) refuse(`line ${line}, column ${quoted(name)}: ${quoted(cell)}, expected a number, a sample of a signal`);
      own[row] = sampleOf(Number(cell), scale);
    });
    return own;
  });
  const by = series === null ? -1 : names.indexOf(series), begins = [0];
  rows.forEach(({ cells, line }, row) => {
    if (by >= 0 && lacks(cells[by])) refuse(`line ${line}, column ${quoted(series)} is empty, expected the name of a recording`);
    if (by >= 0 && row && cells[by] !== rows[row - 1].cells[by]) begins.push(row);
  });
  const found = { title, samples, begins, names: by < 0 ? [""] : begins.map((row) => rows[row].cells[by]), nRows: rows.length };
  const longest = Math.max(...begins.map((begin, at) => (begins[at + 1] ?? rows.length) - begin));
  if (longest < length) refuse(`there is no window of ${length} rows: the longest recording has ${longest}`);
  return found;
}
