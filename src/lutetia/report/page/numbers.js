// Numbers as text: large ones are written out, as on the screens.

const { abs } = Math;

// A large number of this many digits, written out: 29,150.
function writtenOut(number, digits) {
  return Number(number.toPrecision(digits)).toLocaleString("en-US", { useGrouping: abs(number) >= 1e4 });
}

function show(number) {
  if (number === 0) return "0";
  const size = abs(number), far = size >= 1e15 || size < 0.001;
  const text = far ? number.toExponential(1) : size >= 1000 ? writtenOut(number, 4) : number.toFixed(size < 1 ? 3 : 2);
  return text.replaceAll("-", "−");
}

// A value of the data as the data would write it: four digits, and no zeros behind them.
function showValue(number) {
  const size = abs(number), far = size >= 1e15 || (size > 0 && size < 1e-4);
  const text = far ? number.toExponential(3) : size >= 1e4 ? writtenOut(number, 7) : String(Number(number.toPrecision(4)));
  return text.replaceAll("-", "−");
}
