// The cells of a file as values: numbers, dates in seconds, categories by number, texts; NaN, or null, is missing. By the rules of
// `lutetia predict`: see `number_of`, `MEASURED` and `CLEAR` in `lutetia.training`.

const ONE_SPACE = `[${SPACE}]?`;
const WRITTEN = new RegExp(`^([-+]?)[$€£]?${ONE_SPACE}([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)([.][0-9]+)?${ONE_SPACE}[%€]?$`, "u");
const WRITTEN_COMMA = new RegExp(`^([-+]?)€?${ONE_SPACE}([0-9]{1,3}(?:[.][0-9]{3})+)(,[0-9]+)${ONE_SPACE}[%€]?$`, "u");
const MEASURED = new RegExp(`^([-+]?[0-9.,]*[0-9](?:[eE][-+]?[0-9]+)?)${ONE_SPACE}([^${SPACE}0-9.,;:+\\-*/_][^${SPACE},;:]{0,11})$`, "u");

// A number, also 1,234.5 and 1.234,5, $5 and 5%, which is 5; NaN for other texts.
function numberIn(cell) {
  if (isNumber(cell)) return Number(cell);
  const match = WRITTEN.exec(cell) ?? WRITTEN_COMMA.exec(cell);
  const value = match ? Number(match[1] + match[2].replace(/[,.]/g, "") + (match[3] ?? "").replace(",", ".")) : NaN;
  return Number.isFinite(value) ? value : NaN;
}

// A number that the unit of its column may follow.
function measuredIn(cell, unit) {
  const match = unit ? MEASURED.exec(cell) : null;
  return numberIn(match && match[2] === unit ? match[1] : cell);
}

const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], GAP = "[ \\t\\n\\r\\f\\v]";
const MONTH = `(?<name>${MONTHS.join("|")})(?:uary|ruary|ch|il|e|y|ust|t|tember|ober|ember)?\\.?`;
const CLOCK = `(?:(?:T|,?${GAP}+)(?<hour>\\d{1,2}):(?<minute>\\d{2})(?::(?<second>\\d{2})(?:[.,](?<fraction>\\d{1,9}))?)?${GAP}*(?<half>[ap]m|[ap]\\.m\\.)?${GAP}*(?<zone>Z|UTC|GMT|[-+]\\d{2}(?::?\\d{2})?)?)?`;
const DAY_NAME = `(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?${GAP}+)?`, PACKED = "(?<year>\\d{4})(?<month>\\d\\d)(?<day>\\d\\d)";
const dateForm = (text) => new RegExp(`^(?:${text})$`, "i");
const CLEAR = [
  `(?<year>\\d{4})(?<mark>[-/.])(?<month>\\d{1,2})\\k<mark>(?<day>\\d{1,2})${CLOCK}`,
  `${PACKED}T(?<hour>\\d\\d)(?<minute>\\d\\d)(?<second>\\d\\d)?(?<zone>Z)?`,
  `${DAY_NAME}(?<day>\\d{1,2})(?:-|${GAP})+${MONTH}(?:[-,]|${GAP})+(?<year>\\d{4})${CLOCK}`,
  `${DAY_NAME}${MONTH}${GAP}+(?<day>\\d{1,2}),?${GAP}+(?<year>\\d{4})${CLOCK}`,
].map(dateForm);
const EITHER = dateForm(`(?<former>\\d{1,2})(?<mark>[-/.])(?<latter>\\d{1,2})\\k<mark>(?<year>\\d{4}|(?<=/)\\d\\d)${CLOCK}`);
const ASKED = [PACKED, "(?<year>\\d{4})[-/](?<month>\\d{1,2})"].map(dateForm);
const FIRST_SECOND = -62135596800, LAST_SECOND = 253402300799; // of the years 1 and 9999

// A date in seconds since 1970; NaN for other texts and days that do not exist. `order` says which number is the day.
function secondsIn(cell, order) {
  for (const each of [...CLEAR, ...(order === "year first" ? [] : [EITHER]), ...ASKED]) {
    const match = each.exec(cell);
    if (match) return secondsOf(match.groups, order);
  }
  return NaN;
}

function secondsOf(parts, order) {
  const number = (name, otherwise = 0) => Number(parts[name] ?? otherwise);
  let year = number("year"), month = number("month"), day = number("day", 1), hour = number("hour");
  if (parts.former !== undefined) {
    [day, month] = order === "day first" ? [number("former"), number("latter")] : [number("latter"), number("former")];
    if (parts.year.length === 2) year += year >= 50 ? 1900 : 2000;
  }
  if (parts.name !== undefined) month = MONTHS.indexOf(parts.name.slice(0, 3).toLowerCase()) + 1;
  if (parts.half !== undefined) {
    if (hour < 1 || hour > 12) return NaN;
    hour = (hour % 12) + (parts.half[0].toLowerCase() === "p" ? 12 : 0);
  }
  const date = new Date(0), zone = parts.zone ?? "", digits = /^[-+]/.test(zone) ? zone.slice(1).replace(":", "").padEnd(4, "0") : "0000";
  const hours = Number(digits.slice(0, 2)), minutes = Number(digits.slice(2)), ahead = (zone[0] === "-" ? -60 : 60) * (60 * hours + minutes);
  date.setUTCFullYear(year, month - 1, day);
  const isDay = year >= 1 && date.getUTCMonth() === month - 1 && date.getUTCDate() === day;
  if (!isDay || hour > 23 || number("minute") > 59 || number("second") > 59 || hours > 23 || minutes > 59) return NaN;
  const seconds = date.getTime() / 1000 + 3600 * hour + 60 * number("minute") + number("second") - ahead;
  return seconds < FIRST_SECOND || seconds > LAST_SECOND ? NaN : seconds + Number((parts.fraction ?? "0").padEnd(6, "0").slice(0, 6)) / 1e6;
}

// The number of a name in a list, in any case where no two have the same letters; -1 for another.
function placeOf(name, names) {
  const exact = names.indexOf(name), alike = names.flatMap((each, at) => (each.toLowerCase() === name.toLowerCase() ? [at] : []));
  return exact >= 0 ? exact : alike.length === 1 ? alike[0] : -1;
}

// What a cell of a column holds, as `encode` of the column takes it; an error says what was expected.
function valueIn({ unit, categories, dates, cuts, text }, cell) {
  if (model.missing.includes(cell.toLowerCase()) || (dates && cell.toLowerCase() === "nat")) return text ? null : NaN;
  if (text) return cell;
  if (!dates && !cuts) {
    const place = placeOf(cell, categories.slice(1).map(([name]) => name));
    if (place < 0 && !model.unknownIsMissing) refuse(`${quoted(cell)}, expected one of ${categories.slice(1, 21).map(([name]) => name).join(", ")}`);
    return place < 0 ? NaN : place;
  }
  const value = dates ? secondsIn(cell, dates.order) : measuredIn(cell, unit);
  if (Number.isNaN(value)) refuse(`${quoted(cell)}, expected a ${dates ? `date, ${dates.order}` : unit ? `number in ${unit}` : "number"}`);
  return value;
}

// For whoever scripts the page: cells as numbers, and as dates.
Object.assign(window.lutetia, { number: measuredIn, date: secondsIn });
