/* Layers of a score network on one CPU core, float32. `kernels.py` compiles and calls this.

   3x3 convolutions of stride 1 with a border of one zero, by Winograd's algorithm, F(4x4, 3x3) of
   Lavin & Gray (2016): the image is cut into 6x6 tiles that overlap by two; each gives 4x4 outputs
   Y = A^T [ sum over channels of (G w G^T) * (B^T d B) ] A. The product is at 36 points, one matrix
   product over channels for each, instead of 16 x 9 multiplications. Inside, channels come last, so
   that 8 of them are one vector. `BLOCK` tiles at a time go through all three stages while they are
   in the cache. Numbers of channels are multiples of 16.

   1x1 convolutions: matrix products over channels, sample by sample.

   Group normalisation followed by SiLU, in one pass over the data after those for the moments. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef float vec __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(32), aligned(4), may_alias));
typedef int64_t size;

enum { LANES = 8, POINTS = 36, BLOCK = 32, ROWS = 4 };

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }
static inline vec all(float x) { return x - (vec){0}; }
static inline float total(vec v) {
    return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}
static inline size min(size a, size b) { return a < b ? a : b; }

/* Floats of one point of a block; no power of two, or all points would share their cache lines. */
static size plane(size channels) { return BLOCK * channels + 16; }

/* B^T d for one line of six; the results are `step` vectors apart. */
static inline void line_to_points(vec d0, vec d1, vec d2, vec d3, vec d4, vec d5, vec *o, int step) {
    vec a = d4 - 4 * d2, b = d3 - 4 * d1, c = d4 - d2, e = 2 * (d3 - d1);
    o[0] = 4 * d0 - 5 * d2 + d4;
    o[step] = a + b;
    o[2 * step] = a - b;
    o[3 * step] = c + e;
    o[4 * step] = c - e;
    o[5 * step] = 4 * d1 - 5 * d3 + d5;
}

/* A^T m for one line of six points. */
static inline void points_to_line(const vec *m, int step, vec *o) {
    vec sum = m[step] + m[2 * step], difference = m[step] - m[2 * step];
    vec sum2 = m[3 * step] + m[4 * step], difference2 = m[3 * step] - m[4 * step];
    o[0] = m[0] + sum + sum2;
    o[1] = difference + 2 * difference2;
    o[2] = sum + 4 * sum2;
    o[3] = difference + 8 * difference2 + m[5 * step];
}

/* A g for one line of four: the adjoint of the above. */
static inline void gradient_to_points(vec g0, vec g1, vec g2, vec g3, vec *o, int step) {
    vec even = g0 + g2, odd = g1 + g3, even2 = g0 + 4 * g2, odd2 = 2 * g1 + 8 * g3;
    o[0] = g0;
    o[step] = even + odd;
    o[2 * step] = even - odd;
    o[3 * step] = even2 + odd2;
    o[4 * step] = even2 - odd2;
    o[5 * step] = g3;
}

/* G w for one line of three; the results are `step` floats apart. */
static inline void kernel_line(float w0, float w1, float w2, float *o, size step) {
    o[0] = w0 / 4;
    o[step] = -(w0 + w1 + w2) / 6;
    o[2 * step] = -(w0 - w1 + w2) / 6;
    o[3 * step] = (w0 + 2 * w1 + 4 * w2) / 24;
    o[4 * step] = (w0 - 2 * w1 + 4 * w2) / 24;
    o[5 * step] = w2;
}

/* B^T d B for the tile at `x`; its lines are `row` floats apart. */
static void transform_tile(const float *x, size row, size channels, float *v) {
    for (size c = 0; c < channels; c += LANES) {
        vec half[POINTS], full[POINTS];
        for (int i = 0; i < 6; i++) {
            vec d[6];
            for (int j = 0; j < 6; j++) d[j] = load(x + i * row + j * channels + c);
            line_to_points(d[0], d[1], d[2], d[3], d[4], d[5], half + 6 * i, 1);
        }
        for (int j = 0; j < 6; j++) {
            vec *h = half + j;
            line_to_points(h[0], h[6], h[12], h[18], h[24], h[30], full + j, 6);
        }
        for (int i = 0; i < POINTS; i++) store(v + i * plane(channels) + c, full[i]);
    }
}

/* A g A^T for the 4x4 gradients at `g`. */
static void transform_gradient(const float *g, size row, size channels, float *m) {
    for (size k = 0; k < channels; k += LANES) {
        vec half[24], full[POINTS];
        for (int i = 0; i < 4; i++) {
            const float *p = g + i * row + k;
            gradient_to_points(load(p), load(p + channels), load(p + 2 * channels),
                               load(p + 3 * channels), half + 6 * i, 1);
        }
        for (int j = 0; j < 6; j++)
            gradient_to_points(half[j], half[6 + j], half[12 + j], half[18 + j], full + j, 6);
        for (int i = 0; i < POINTS; i++) store(m + i * plane(channels) + k, full[i]);
    }
}

/* A^T m A + bias, as far as the image goes, to (height, width, channels) at `y`. */
static void transform_back(const float *m, size channels, const float *bias, float *y, size row,
                           size height, size width) {
    for (size k = 0; k < channels; k += LANES) {
        vec points[POINTS], half[24], line[4], shift = bias ? load(bias + k) : (vec){0};
        for (int i = 0; i < POINTS; i++) points[i] = load(m + i * plane(channels) + k);
        for (int j = 0; j < 6; j++) {
            points_to_line(points + j, 6, line);
            for (int i = 0; i < 4; i++) half[6 * i + j] = line[i];
        }
        for (int i = 0; i < height; i++) {
            points_to_line(half + 6 * i, 1, line);
            for (int j = 0; j < width; j++) store(y + i * row + j * channels + k, line[j] + shift);
        }
    }
}

/* c = a b, with a (rows, inner) and b (inner, cols). */
static void multiply(const float *restrict a, const float *restrict b, float *restrict c, size rows,
                     size inner, size cols) {
    for (size j = 0; j < cols; j += 2 * LANES)
        for (size i = 0; i < rows; i += ROWS) {
            vec sum[ROWS][2] = {{{0}}};
            for (size l = 0; l < inner; l++) {
                vec b0 = load(b + l * cols + j), b1 = load(b + l * cols + j + LANES);
                for (int r = 0; r < ROWS; r++) {
                    sum[r][0] += a[(i + r) * inner + l] * b0;
                    sum[r][1] += a[(i + r) * inner + l] * b1;
                }
            }
            for (int r = 0; r < ROWS; r++)
                for (int s = 0; s < 2; s++) store(c + (i + r) * cols + j + s * LANES, sum[r][s]);
        }
}

/* c += a^T b, with a (rows, inner) and b (rows, cols). */
static void accumulate(const float *restrict a, const float *restrict b, float *restrict c,
                       size rows, size inner, size cols) {
    for (size j = 0; j < cols; j += 2 * LANES)
        for (size i = 0; i < inner; i += ROWS) {
            vec sum[ROWS][2];
            for (int r = 0; r < ROWS; r++)
                for (int s = 0; s < 2; s++) sum[r][s] = load(c + (i + r) * cols + j + s * LANES);
            for (size l = 0; l < rows; l++) {
                vec b0 = load(b + l * cols + j), b1 = load(b + l * cols + j + LANES);
                for (int r = 0; r < ROWS; r++) {
                    sum[r][0] += a[l * inner + i + r] * b0;
                    sum[r][1] += a[l * inner + i + r] * b1;
                }
            }
            for (int r = 0; r < ROWS; r++)
                for (int s = 0; s < 2; s++) store(c + (i + r) * cols + j + s * LANES, sum[r][s]);
        }
}

/* The 8x8 matrix of which `v` are the rows; row i of its transpose goes to out[i]. */
static inline void transpose(const vec *v, float **out) {
    vec a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            vec p = a[i + j], q = a[i + 2 + j];
            b[i + 2 * j] = __builtin_shufflevector(p, q, 0, 1, 8, 9, 4, 5, 12, 13);
            b[i + 2 * j + 1] = __builtin_shufflevector(p, q, 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        store(out[i], __builtin_shufflevector(b[i], b[4 + i], 0, 1, 2, 3, 8, 9, 10, 11));
        store(out[4 + i], __builtin_shufflevector(b[i], b[4 + i], 4, 5, 6, 7, 12, 13, 14, 15));
    }
}

/* From (channels, height, width) to channels last, lines `row` floats apart. */
static void channels_last(const float *x, size channels, size height, size width, float *p,
                          size row) {
    size pixels = height * width, i = 0;
    for (; i + 8 <= pixels; i += 8)
        for (size c = 0; c < channels; c += 8) {
            vec v[8];
            float *out[8];
            for (int r = 0; r < 8; r++) {
                v[r] = load(x + (c + r) * pixels + i);
                out[r] = p + (i + r) / width * row + (i + r) % width * channels + c;
            }
            transpose(v, out);
        }
    for (; i < pixels; i++)
        for (size c = 0; c < channels; c++)
            p[i / width * row + i % width * channels + c] = x[c * pixels + i];
}

/* From (pixels, channels) to (channels, pixels), added to `rest` unless that is NULL. */
static void channels_first(const float *p, size channels, size pixels, const float *rest,
                           float *y) {
    size i = 0;
    for (; i + 8 <= pixels; i += 8)
        for (size c = 0; c < channels; c += 8) {
            vec v[8];
            float *out[8];
            for (int r = 0; r < 8; r++) {
                v[r] = load(p + (i + r) * channels + c);
                out[r] = y + (c + r) * pixels + i;
            }
            transpose(v, out);
            for (int r = 0; rest && r < 8; r++)
                store(out[r], load(out[r]) + load(rest + (c + r) * pixels + i));
        }
    for (; i < pixels; i++)
        for (size c = 0; c < channels; c++)
            y[c * pixels + i] = p[i * channels + c] + (rest ? rest[c * pixels + i] : 0);
}

/* How images are cut, `group` of them at a time so that small ones fill a block. */
typedef struct {
    size high, wide, tiles, group;
} Grid;

static Grid cut(size height, size width) {
    Grid g = {(height + 3) / 4, (width + 3) / 4, 0, 1};
    g.tiles = g.high * g.wide;
    if (g.tiles < BLOCK) g.group = BLOCK / g.tiles;
    return g;
}

/* u = G w G^T: kernels w (k, c, 3, 3) at the points, (36, c, k); those of the adjoint convolution,
   mirrored and (36, k, c), if asked for. */
void kernel_points(const float *w, float *u, size k, size c, int adjoint) {
    for (size a = 0; a < c; a++)
        for (size b = 0; b < k; b++) {
            const float *kernel = w + (b * c + a) * 9;
            float half[18];
            for (int j = 0; j < 3; j++) {
                float w0 = kernel[adjoint ? 8 - j : j], w1 = kernel[adjoint ? 5 - j : 3 + j];
                float w2 = kernel[adjoint ? 2 - j : 6 + j];
                kernel_line(w0, w1, w2, half + j, 3);
            }
            float *out = u + (adjoint ? b * c + a : a * k + b);
            for (int i = 0; i < 6; i++)
                kernel_line(half[3 * i], half[3 * i + 1], half[3 * i + 2], out + 6 * i * c * k,
                            c * k);
        }
}

/* y (n, k, h, w) = convolution of x (n, c, h, w), with the weights at the points, u (36, c, k),
   plus a bias and the rest of y, (n, k, h, w), unless these are NULL. The bias is (k), or (n, k) if
   `own` is k. Returns 1 if there is no memory. */
int convolve(const float *x, const float *u, const float *bias, size own, const float *rest,
             float *y, size n, size c, size k, size height, size width) {
    Grid grid = cut(height, width);
    size row = (4 * grid.wide + 2) * c, padded = (4 * grid.high + 2) * row;
    float *image = calloc(grid.group * padded, sizeof(float)); /* its border stays zero */
    float *v = calloc(POINTS * plane(c), sizeof(float));
    float *m = malloc(POINTS * plane(k) * sizeof(float));
    float *out = malloc(grid.group * height * width * k * sizeof(float));
    int failed = !image || !v || !m || !out;
    for (size first = 0; first < n && !failed; first += grid.group) {
        size images = min(grid.group, n - first), tiles = images * grid.tiles;
        for (size e = 0; e < images; e++)
            channels_last(x + (first + e) * c * height * width, c, height, width,
                          image + e * padded + row + c, row);
        for (size start = 0; start < tiles; start += BLOCK) {
            size stop = min(start + BLOCK, tiles);
            for (size t = start; t < stop; t++) {
                size i = 4 * (t % grid.tiles / grid.wide), j = 4 * (t % grid.wide);
                transform_tile(image + t / grid.tiles * padded + i * row + j * c, row, c,
                               v + (t - start) * c);
            }
            size rows = (stop - start + ROWS - 1) / ROWS * ROWS;
            for (int p = 0; p < POINTS; p++)
                multiply(v + p * plane(c), u + p * c * k, m + p * plane(k), rows, c, k);
            for (size t = start; t < stop; t++) {
                size i = 4 * (t % grid.tiles / grid.wide), j = 4 * (t % grid.wide);
                const float *shift = bias ? bias + (first + t / grid.tiles) * own : NULL;
                transform_back(m + (t - start) * k, k, shift,
                               out + ((t / grid.tiles * height + i) * width + j) * k, width * k,
                               min(4, height - i), min(4, width - j));
            }
        }
        for (size e = 0; e < images; e++)
            channels_first(out + e * height * width * k, k, height * width,
                           rest ? rest + (first + e) * k * height * width : NULL,
                           y + (first + e) * k * height * width);
    }
    free(image), free(v), free(m), free(out);
    return failed;
}

/* Adds to du (36, c, k) the gradient of the weights at the points, for inputs x (n, c, h, w) and
   gradients g (n, k, h, w). Returns 1 if there is no memory. */
int weight_gradient(const float *x, const float *g, float *du, size n, size c, size k, size height,
                    size width) {
    Grid grid = cut(height, width);
    size row = (4 * grid.wide + 2) * c, padded = (4 * grid.high + 2) * row;
    size row_g = 4 * grid.wide * k, padded_g = 4 * grid.high * row_g;
    float *image = calloc(grid.group * padded, sizeof(float));
    float *gradient = calloc(grid.group * padded_g, sizeof(float));
    float *v = malloc(POINTS * plane(c) * sizeof(float));
    float *m = malloc(POINTS * plane(k) * sizeof(float));
    int failed = !image || !gradient || !v || !m;
    for (size first = 0; first < n && !failed; first += grid.group) {
        size images = min(grid.group, n - first), tiles = images * grid.tiles;
        for (size e = 0; e < images; e++) {
            channels_last(x + (first + e) * c * height * width, c, height, width,
                          image + e * padded + row + c, row);
            channels_last(g + (first + e) * k * height * width, k, height, width,
                          gradient + e * padded_g, row_g);
        }
        for (size start = 0; start < tiles; start += BLOCK) {
            size stop = min(start + BLOCK, tiles);
            for (size t = start; t < stop; t++) {
                size i = 4 * (t % grid.tiles / grid.wide), j = 4 * (t % grid.wide);
                transform_tile(image + t / grid.tiles * padded + i * row + j * c, row, c,
                               v + (t - start) * c);
                transform_gradient(gradient + t / grid.tiles * padded_g + i * row_g + j * k, row_g,
                                   k, m + (t - start) * k);
            }
            for (int p = 0; p < POINTS; p++)
                accumulate(v + p * plane(c), m + p * plane(k), du + p * c * k, stop - start, c, k);
        }
    }
    free(image), free(gradient), free(v), free(m);
    return failed;
}

/* y (n, k, pixels) = w (k, c) x (n, c, pixels), plus a bias (k) unless that is NULL. Numbers of
   channels are multiples of 4, of pixels of 16. */
void mix_channels(const float *x, const float *w, const float *bias, float *y, size n, size c,
                  size k, size pixels) {
    for (size e = 0; e < n; e++) {
        float *out = y + e * k * pixels;
        multiply(w, x + e * c * pixels, out, k, c, pixels);
        for (size i = 0; bias && i < k * pixels; i += LANES)
            store(out + i, load(out + i) + bias[i / pixels]);
    }
}

/* Adds g x^T, summed over samples, to dw (k, c); x (n, c, pixels), g (n, k, pixels). */
void mix_gradient(const float *x, const float *g, float *dw, size n, size c, size k, size pixels) {
    for (size e = 0; e < n; e++)
        for (size i = 0; i < k; i += 2)
            for (size j = 0; j < c; j += ROWS) {
                const float *a = g + (e * k + i) * pixels, *b = x + (e * c + j) * pixels;
                vec sum[2][ROWS] = {{{0}}};
                for (size p = 0; p < pixels; p += LANES) {
                    vec a0 = load(a + p), a1 = load(a + pixels + p);
                    for (int r = 0; r < ROWS; r++) {
                        vec values = load(b + r * pixels + p);
                        sum[0][r] += a0 * values;
                        sum[1][r] += a1 * values;
                    }
                }
                for (int s = 0; s < 2; s++)
                    for (int r = 0; r < ROWS; r++) dw[(i + s) * c + j + r] += total(sum[s][r]);
            }
}

static inline vec choose(ints where, vec a, vec b) {
    return (vec)((where & (ints)a) | (~where & (ints)b));
}

/* exp for |x| < 87, beyond which it stays. */
static inline vec exponential(vec x) {
    x = choose(x > 87, all(87), choose(x < -87, all(-87), x));
    vec shifted = x * 1.44269504f + 12582912.0f; /* rounds to a whole number of doublings */
    vec doublings = shifted - 12582912.0f;
    vec r = x - doublings * 0.693359375f + doublings * 2.12194440e-4f;
    vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    ints exponent = (__builtin_convertvector(doublings, ints) + 127) << 23;
    return p * (vec)exponent;
}

static inline vec sigmoid(vec z) { return 1 / (1 + exponential(-z)); }

/* y = silu(z), z = weight * (x - mean) / deviation + bias with the moments of every group.
   x, y (n, channels, pixels); moments (n, groups, 2): mean and 1 / deviation, for the gradient.
   Pixels are a multiple of 8. */
void norm_silu(const float *x, const float *weight, const float *bias, float *y, float *moments,
               size n, size channels, size pixels, size groups, float epsilon) {
    size in_group = channels / groups, count = in_group * pixels;
    for (size g = 0; g < n * groups; g++) {
        const float *p = x + g * count;
        vec sum = {0}, squares = {0};
        for (size i = 0; i < count; i += LANES) sum += load(p + i);
        float mean = total(sum) / count;
        for (size i = 0; i < count; i += LANES) {
            vec d = load(p + i) - mean;
            squares += d * d;
        }
        float scale = 1 / sqrtf(total(squares) / count + epsilon);
        moments[2 * g] = mean, moments[2 * g + 1] = scale;
        for (size c = 0; c < in_group; c++) {
            size channel = g % groups * in_group + c;
            float a = scale * weight[channel], b = bias[channel] - mean * a;
            for (size i = c * pixels; i < (c + 1) * pixels; i += LANES) {
                vec z = a * load(p + i) + b;
                store(y + g * count + i, z * sigmoid(z));
            }
        }
    }
}

/* The gradients of x (to dx), and added to those of weight and bias (dw, db). */
void norm_silu_gradient(const float *dy, const float *x, const float *weight, const float *bias,
                        const float *moments, float *dx, float *dw, float *db, size n,
                        size channels, size pixels, size groups) {
    size in_group = channels / groups, count = in_group * pixels;
    for (size g = 0; g < n * groups; g++) {
        const float *p = x + g * count, *q = dy + g * count;
        float *o = dx + g * count, mean = moments[2 * g], scale = moments[2 * g + 1];
        float along_one = 0, along_x = 0; /* of the gradient of the normalised x, over the group */
        for (size c = 0; c < in_group; c++) {
            size channel = g % groups * in_group + c;
            float w = weight[channel], shift = bias[channel];
            vec sum = {0}, with_x = {0};
            for (size i = c * pixels; i < (c + 1) * pixels; i += LANES) {
                vec normal = (load(p + i) - mean) * scale, z = w * normal + shift, s = sigmoid(z);
                vec dz = load(q + i) * s * (1 + z * (1 - s));
                sum += dz;
                with_x += dz * normal;
                store(o + i, dz);
            }
            db[channel] += total(sum), dw[channel] += total(with_x);
            along_one += w * total(sum), along_x += w * total(with_x);
        }
        along_one /= count, along_x /= count;
        for (size c = 0; c < in_group; c++) {
            float w = weight[g % groups * in_group + c];
            for (size i = c * pixels; i < (c + 1) * pixels; i += LANES) {
                vec normal = (load(p + i) - mean) * scale;
                store(o + i, scale * (w * load(o + i) - along_one - normal * along_x));
            }
        }
    }
}
