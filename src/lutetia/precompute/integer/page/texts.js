// Columns of text: the words that the model knows, what is made of them, and a field whose words are marked as they are typed.

const list = byId("sliders");
const OF_WORD = 1, ALONE = 2, SKIPPED = 3, APOSTROPHE = 4;
const MOST_MARKED = 200; // different words of a text that are left out in turn

// What a character is, and its small letter where a known word has it.
function kindOf(code) {
  const { begins, kinds } = model.letters;
  let low = 0, high = begins.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (begins[middle] <= code) low = middle;
    else high = middle;
  }
  return kinds[low];
}

const smallLetters = new Map(model.letters ? Array.from(model.letters.from, (code, at) => [code, model.letters.to[at]]) : []);

// The words of a text: where each begins and ends, and what it is.
function wordsOf(text) {
  const signs = Array.from(text), codes = signs.map((sign) => sign.codePointAt(0)), kinds = codes.map(kindOf), found = [];
  const small = (at) => String.fromCodePoint(smallLetters.get(codes[at]) ?? codes[at]);
  const begins = [0];
  signs.forEach((sign, at) => begins.push(begins[at] + sign.length));
  for (let at = 0; at < signs.length; ) {
    const first = at;
    let word = "";
    if (kinds[at] === ALONE) word = small(at++);
    else if (kinds[at] === OF_WORD) {
      for (; at < signs.length; at++) {
        if (kinds[at] === APOSTROPHE && kinds[at + 1] === OF_WORD) word += "'";
        else if (kinds[at] === OF_WORD) word += small(at);
        else if (kinds[at] !== SKIPPED) break;
      }
    } else at++;
    if (word) found.push({ begin: begins[first], end: begins[at], word: /^[0-9]{5,}$/.test(word) ? "0".repeat(word.length) : word });
  }
  return found;
}

// The codes of the inputs that are made of a text, by its words; without any text all are 0, missing.
function textCodes({ text, inputs }, words) {
  if (words === null) return inputs.map(() => 0);
  const known = new Set(), values = new Map(inputs.map((input) => [input, 0])), nGrams = text.order.size;
  const add = (gram) => {
    const number = text.order.get(gram);
    if (number === undefined || known.has(number)) return;
    known.add(number);
    text.tallies.forEach((input, tally) => values.set(input, values.get(input) + text.weights[tally * nGrams + number]));
    if (text.asked[number] >= 0) values.set(text.asked[number], 1);
  };
  words.forEach((word, at) => {
    add(word);
    if (at) add(`${words[at - 1]} ${word}`);
  });
  values.set(text.count, words.length);
  return inputs.map((input, number) => 1 + countBelow(text.edges[number], values.get(input)));
}

function addText(column) {
  const { name, inputs, text } = column, id = `input${inputs[0]}`;
  text.order = new Map(text.grams.map((gram, number) => [gram, number]));
  const field = html("textarea", { id, rows: 5 }), marked = html("p", { className: "marked", id: `marked${inputs[0]}` });
  const wordsIn = (typed) => (typed === null || model.missing.includes(typed.trim().toLowerCase()) ? null : wordsOf(typed).map(({ word }) => word));
  let timer = 0;

  // How far the answer falls without a word: the lead of the class, or the number.
  function mark() {
    const typed = field.value, words = wordsIn(typed) ?? [], places = words.length ? wordsOf(typed) : [], scores = runStages(x);
    const best = greatest(scores), different = [...new Set(words)].slice(0, MOST_MARKED), falls = new Map();
    const leadOf = (all) => (all.length === 1 ? all[0] : all[best] - Math.max(...all.filter((_, at) => at !== best)));
    for (const word of different) {
      const others = Int32Array.from(x);
      textCodes(column, words.filter((each) => each !== word)).forEach((code, number) => (others[inputs[number]] = code));
      falls.set(word, leadOf(scores) - leadOf(runStages(others)));
    }
    const most = Math.max(...Array.from(falls.values(), Math.abs), 1), parts = [];
    let at = 0;
    for (const { begin, end, word } of places) {
      const fall = falls.get(word) ?? 0, span = html("span", { className: fall < 0 ? "minus" : "", title: told(fall * model.scoreUnit, { maximumSignificantDigits: 3 }) }, typed.slice(begin, end));
      span.style.setProperty("--share", `${(60 * Math.abs(fall)) / most}%`);
      parts.push(typed.slice(at, begin), span);
      at = end;
    }
    marked.replaceChildren(...parts, typed.slice(at));
  }

  const markSoon = () => {
    clearTimeout(timer);
    timer = setTimeout(mark, 40);
  };
  field.addEventListener("input", () => {
    enter(column, field.value);
    markSoon();
    answer();
  });
  column.encode = (typed) => textCodes(column, wordsIn(typed));
  column.show = (typed) => {
    field.value = typed ?? "";
    markSoon();
  };
  enter(column, null);
  list.append(html("li", { className: "typed" }, html("label", { htmlFor: id }, name), field, marked));
}

// For whoever scripts the page: the codes of a text, by the number of its column among those of text.
window.lutetia.textCodes = (number, typed) => {
  const column = model.columns.filter(({ text }) => text)[number];
  return textCodes(column, typed === null ? null : wordsOf(typed).map(({ word }) => word));
};
