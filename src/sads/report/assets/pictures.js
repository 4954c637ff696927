"use strict";
// Pictures of numbers on canvases: one pixel a number, which pointing or the arrow keys read out.

sads.grey = (share) => {
  const level = Math.round(255 * Math.min(1, Math.max(0, share)));
  return [level, level, level];
};

sads.palette = (interpolate) => {
  const colors = Array.from({ length: 256 }, (_, i) => d3.rgb(interpolate(i / 255)));
  return (share) => {
    const { r, g, b } = colors[Math.round(255 * Math.min(1, Math.max(0, share)))];
    return [r, g, b];
  };
};
sads.magma = sads.palette(d3.interpolateMagma);
sads.viridis = sads.palette(d3.interpolateViridis);

// Fill a canvas: `color(x, y)` is [red, green, blue] of a pixel.
sads.paint = (canvas, width, height, color) => {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      image.data.set([...color(x, y), 255], 4 * (y * width + x));
    }
  }
  context.putImageData(image, 0, 0);
};

// Say what is under the pointer, or where the arrow keys have gone: `describe(x, y)` in `output`.
sads.pointable = (canvas, output, describe, resting = "") => {
  const at = { x: 0, y: 0 };
  const show = (x, y) => {
    at.x = Math.min(canvas.width - 1, Math.max(0, x));
    at.y = Math.min(canvas.height - 1, Math.max(0, y));
    output.textContent = describe(at.x, at.y);
  };
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    show(
      Math.floor(((event.clientX - box.left) / box.width) * canvas.width),
      Math.floor(((event.clientY - box.top) / box.height) * canvas.height),
    );
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") output.textContent = resting;
  });
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    const [dx, dy] = steps[event.key];
    show(at.x + dx, at.y + dy);
  });
  output.textContent = resting;
};

// The planes of data of a shape: (channels, height, width); data on a line are a row a channel.
sads.planes = (shape) => {
  if (shape.length === 3) return { channels: shape[0], height: shape[1], width: shape[2] };
  const [first, ...rest] = shape.length > 1 ? shape : [1, ...shape];
  return { channels: 1, height: first, width: rest.reduce((a, b) => a * b, 1) };
};

// Energy over spatial frequencies, zero in the centre, summed over channels: |DFT|^2 of `vector`.
sads.fourierEnergy = (vector, { channels, height, width }) => {
  const energy = new Float64Array(height * width);
  const rows = sads.turns(width);
  const columns = sads.turns(height);
  const real = new Float64Array(height * width);
  const imaginary = new Float64Array(height * width);
  for (let channel = 0; channel < channels; channel++) {
    const start = channel * height * width;
    for (let y = 0; y < height; y++) {
      for (let k = 0; k < width; k++) {
        let re = 0;
        let im = 0;
        for (let x = 0; x < width; x++) {
          const value = vector[start + y * width + x];
          const turn = (k * x) % width;
          re += value * rows.cos[turn];
          im -= value * rows.sin[turn];
        }
        real[y * width + k] = re;
        imaginary[y * width + k] = im;
      }
    }
    for (let k = 0; k < width; k++) {
      for (let l = 0; l < height; l++) {
        let re = 0;
        let im = 0;
        for (let y = 0; y < height; y++) {
          const turn = (l * y) % height;
          const [a, b] = [real[y * width + k], imaginary[y * width + k]];
          re += a * columns.cos[turn] + b * columns.sin[turn];
          im += b * columns.cos[turn] - a * columns.sin[turn];
        }
        const shifted = ((l + (height >> 1)) % height) * width + ((k + (width >> 1)) % width);
        energy[shifted] += re * re + im * im;
      }
    }
  }
  return energy;
};

sads.turns = (count) => ({
  cos: Float64Array.from({ length: count }, (_, i) => Math.cos((2 * Math.PI * i) / count)),
  sin: Float64Array.from({ length: count }, (_, i) => Math.sin((2 * Math.PI * i) / count)),
});
