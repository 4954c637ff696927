"use strict";
// Many small images on one canvas, with their true values.

sads.outside = { above: [182, 43, 43], below: [37, 99, 168], broken: [160, 80, 200] };

// Values of packed images, NaN where they are not finite.
sads.unpackImages = (images) => {
  const levels = sads.unpack(images.pixels);
  return (i) => (levels[i] === -32768 ? NaN : images.low + (levels[i] + 32767) * images.step);
};

// Draws images in rows of `columns`, a line of space between them; pointing reads values out.
sads.gallery = (canvas, output, images, columns = images.count) => {
  const planes = sads.planes(images.shape);
  const { channels, height, width } = planes;
  const value = sads.unpackImages(images);
  const rows = Math.ceil(images.count / columns);
  const at = (x, y) => {
    const [column, row] = [Math.floor(x / (width + 1)), Math.floor(y / (height + 1))];
    const [inX, inY] = [x % (width + 1), y % (height + 1)];
    const number = row * columns + column;
    if (inX === width || inY === height || number >= images.count) return null;
    const start = number * channels * height * width + inY * width + inX;
    const shown = channels === 3 ? [0, 1, 2] : [0];
    return { number, inX, inY, values: shown.map((c) => value(start + c * height * width)) };
  };
  const level = (v) => Math.round((255 * (v - images.black)) / (images.white - images.black));
  const slack = (images.white - images.black) / 510;
  const color = (x, y) => {
    const pixel = at(x, y);
    if (pixel === null) return [128, 128, 128];
    if (pixel.values.some(Number.isNaN)) return sads.outside.broken;
    if (pixel.values.some((v) => v > images.white + slack)) return sads.outside.above;
    if (pixel.values.some((v) => v < images.black - slack)) return sads.outside.below;
    const levels = pixel.values.map(level);
    return levels.length === 3 ? levels : [levels[0], levels[0], levels[0]];
  };
  sads.paint(canvas, columns * (width + 1) - 1, rows * (height + 1) - 1, color);
  const zoom = Math.max(1, Math.min(8, Math.round(64 / width)));
  canvas.style.width = `${canvas.width * zoom}px`;
  sads.pointable(canvas, output, (x, y) => {
    const pixel = at(x, y);
    if (pixel === null) return "";
    const text = pixel.values.map((v) => (Number.isNaN(v) ? "not finite" : sads.number(v))).join(", ");
    return `sample ${pixel.number + 1}, (${pixel.inY}, ${pixel.inX}): ${text}`;
  });
};
