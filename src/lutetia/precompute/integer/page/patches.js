// Patterns that are counted in an image. The same numbers as in Python and C.

const nPixels = model.patches ? model.shape.reduce((a, b) => a * b, 1) : model.nInputs;

// The addresses of one detector at every position of an image of levels, and how many positions there are down and across.
function addresses(levels, detector) {
  const { shape: [channels, height, width], nPairs, pairs, plane, threshold } = model.patches;
  const own = Array.from(pairs.slice(detector * nPairs * 4, (detector + 1) * nPairs * 4)), of = plane[detector];
  const reach = (first) => Math.max(...own.filter((_, at) => at % 2 === first));
  const down = height - reach(0), across = width - reach(1), found = new Uint8Array(down * across);
  const planes = of < 0 ? Array.from({ length: channels }, (_, channel) => channel) : [of];
  for (let pair = 0; pair < nPairs; pair++) {
    const [above, left, below, right] = own.slice(pair * 4, pair * 4 + 4);
    for (let row = 0; row < down; row++) {
      for (let column = 0; column < across; column++) {
        let apart = 0;
        for (const channel of planes) {
          const start = channel * height * width;
          const step = levels[start + (row + above) * width + column + left] - levels[start + (row + below) * width + column + right];
          apart += of < 0 ? Math.abs(step) : step;
        }
        if (apart > threshold[detector]) found[row * across + column] |= 1 << pair;
      }
    }
  }
  return { found, down, across };
}

// Whether a position lies in a region: a bit for each of 4 × 4 cells.
const isInside = (region, row, column, down, across) => (model.patches.regions[region] >> (Math.floor((row * 4) / down) * 4 + Math.floor((column * 4) / across))) & 1;

// The positions at which a count found its pattern.
function positions(levels, number) {
  const [detector, address, region] = model.patches.counted.slice(number * 3, number * 3 + 3);
  const { found, down, across } = addresses(levels, detector), places = [];
  found.forEach((each, at) => {
    const row = Math.floor(at / across), column = at % across;
    if (each === address && isInside(region, row, column, down, across)) places.push([row, column]);
  });
  return places;
}

function countPatterns(levels) {
  const { counted, nPairs } = model.patches, n = counted.length / 3, counts = new Int32Array(n);
  let held = null, of = -1;
  for (let number = 0; number < n; number++) {
    const [detector, address, region] = counted.slice(number * 3, number * 3 + 3);
    if (detector !== of) {
      const { found, down, across } = addresses(levels, detector);
      held = new Int32Array(16 << nPairs);
      found.forEach((each, at) => held[(Math.floor((Math.floor(at / across) * 4) / down) * 4 + Math.floor(((at % across) * 4) / across)) << nPairs | each]++);
      of = detector;
    }
    for (let cell = 0; cell < 16; cell++) if ((model.patches.regions[region] >> cell) & 1) counts[number] += held[cell << nPairs | address];
  }
  return counts;
}

// The inputs of the model for pixels from 0 to 255: the codes of the pixels, then those of the counts.
function encode(levels) {
  if (!model.patches) refuse("this model counts no patterns: its inputs are codes of pixels");
  if (levels.length !== nPixels) refuse(`the image has ${levels.length} numbers, expected ${nPixels}`);
  const { edges, starts } = model.patches, counts = countPatterns(levels), inputs = new Int32Array(model.nInputs);
  for (let input = 0; input < inputs.length; input++) {
    const value = input < nPixels ? levels[input] : counts[input - nPixels];
    inputs[input] = 1;
    for (let at = starts[input]; at < starts[input + 1] && edges[at] < value; at++) inputs[input]++;
  }
  return inputs;
}

Object.assign(window.lutetia, { encode });
