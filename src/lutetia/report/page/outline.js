// The outline of what an image shows, to be drawn over its heat map: where the values cross the middle between dark and light.

// Marching squares over the centres of the pixels, with a border of the background around them.
function outline(values, shape) {
  const { height, width } = sizes(shape);
  const { pixels } = perPixel(values, shape);
  const [low, high] = [min(...pixels), max(...pixels)];
  if (high === low) return "";
  const corners = [pixels[0], pixels[width - 1], pixels[(height - 1) * width], pixels.at(-1)].sort((a, b) => a - b);
  const ground = corners[1];
  const level = ground + ((high - ground > ground - low ? high : low) - ground) * 0.4;
  const value = (x, y) => (x < 0 || y < 0 || x >= width || y >= height ? ground : pixels[y * width + x]);
  // Where between two neighbours the level is crossed.
  const cross = ([x1, y1], [x2, y2]) => {
    const [a, b] = [value(x1, y1), value(x2, y2)];
    const t = (level - a) / (b - a);
    return `${(x1 + (x2 - x1) * t + 0.5).toFixed(2)} ${(y1 + (y2 - y1) * t + 0.5).toFixed(2)}`;
  };
  let path = "";
  for (let y = -1; y < height; y++) {
    for (let x = -1; x < width; x++) {
      const square = [[x, y], [x + 1, y], [x + 1, y + 1], [x, y + 1]];
      const inside = square.map(([i, j]) => value(i, j) > level);
      const ends = [];
      square.forEach((corner, i) => inside[i] !== inside[(i + 1) % 4] && ends.push(cross(corner, square[(i + 1) % 4])));
      for (let i = 0; i < ends.length; i += 2) path += `M${ends[i]}L${ends[i + 1]}`;
    }
  }
  return path;
}

// Twice, a light line below a dark one, so that it shows on any colour.
function outlinePaths(values, shape) {
  const d = outline(values, shape);
  return d ? ["glow", "outline"].map((name) => svg("path", { d, class: name })) : [];
}
