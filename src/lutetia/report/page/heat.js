// Images and heat maps on small canvases, one pixel per input, which the style enlarges.

const probe = html("span", { hidden: true });
document.body.append(probe);

// A colour of the style as three numbers, for the theme in use.
function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
}

// Shapes are [features], [height, width] or [channels, height, width].
function sizes(shape) {
  const [height, width] = shape.length > 1 ? shape.slice(-2) : [1, shape[0]];
  return { height, width, channels: shape.length === 3 ? shape[0] : 1 };
}

function perPixel(values, shape) {
  const { height, width, channels } = sizes(shape);
  const pixels = new Array(height * width).fill(0);
  values.forEach((value, at) => (pixels[at % pixels.length] += value));
  return { pixels, channels };
}

// The input as ink on paper, and the heat over it: for in one colour, against in another.
function paint(canvas, shape, values, heat) {
  const { height, width } = sizes(shape);
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  const [ink, plus, minus, well] = ["--ink", "--for", "--against", "--well"].map(colour);
  const grey = perPixel(values, shape).pixels;
  const low = min(...grey);
  const span = max(...grey) - low || 1;
  const warm = heat && perPixel(heat, shape).pixels;
  const most = warm && largest(warm);
  for (let at = 0; at < grey.length; at++) {
    let shade = ((grey[at] - low) / span) * (warm ? 0 : 0.92);
    let pixel = well.map((c, i) => c + (ink[i] - c) * shade);
    if (warm) {
      // What matters little fades, so that what matters stands out.
      const strength = 0.96 * (abs(warm[at]) / most) ** 1.3;
      const tint = warm[at] < 0 ? minus : plus;
      pixel = pixel.map((c, i) => c + (tint[i] - c) * strength);
    }
    picture.data.set([...pixel, 255], 4 * at);
  }
  context.putImageData(picture, 0, 0);
}
