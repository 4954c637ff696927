/* Layers of a score network on one CPU core, float32; `layers.py` calls them.

   Images are (n, height, width, channels): channels come last, so that 8 of them are one vector.
   Numbers of channels are multiples of 16. Where a `step` is given, pixels are that many floats
   apart; otherwise as many as there are channels.

   3x3 convolutions of stride 1 with a border of one zero, by Winograd's algorithm, F(4x4, 3x3) of
   Lavin & Gray (2016): the image is cut into 6x6 tiles that overlap by two; each gives 4x4 outputs
   Y = A^T [ sum over channels of (G w G^T) * (B^T d B) ] A. The product is at 36 points, one matrix
   product over channels for each, instead of 16 x 9 multiplications. `BLOCK` tiles at a time go
   through all three stages while they are in the cache.

   Group normalisation followed by SiLU, in one pass over the data after those for the moments. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(32), aligned(4), may_alias));
typedef int64_t size;

/* Inlined, these functions would run short of registers, a tenth slower. */
#define ON_ITS_OWN __attribute__((noinline))

enum { LANES = 8, WIDE = 2 * LANES, POINTS = 36, BLOCK = 32, ROWS = 4 };

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }
static inline vec all(float x) { return x - (vec){0}; }
static inline size min(size a, size b) { return a < b ? a : b; }

/* `count` rows of `multiply`, 16 columns. */
static inline void multiply_rows(const float *restrict a, const float *restrict b,
                                 float *restrict c, size inner, size cols, const int count) {
    vec sum[ROWS][2] = {{{0}}};
    for (size l = 0; l < inner; l++) {
        vec b0 = load(b + l * cols), b1 = load(b + l * cols + LANES);
        for (int r = 0; r < count; r++) {
            sum[r][0] += a[r * inner + l] * b0;
            sum[r][1] += a[r * inner + l] * b1;
        }
    }
    for (int r = 0; r < count; r++)
        for (int s = 0; s < 2; s++) store(c + r * cols + s * LANES, sum[r][s]);
}

/* c = a b, with a (rows, inner) and b (inner, cols). */
ON_ITS_OWN static void multiply(const float *a, const float *b, float *c, size rows, size inner,
                                size cols) {
    for (size j = 0; j < cols; j += WIDE) {
        size i = 0;
        for (; i + ROWS <= rows; i += ROWS)
            multiply_rows(a + i * inner, b + j, c + i * cols + j, inner, cols, ROWS);
        for (; i < rows; i++)
            multiply_rows(a + i * inner, b + j, c + i * cols + j, inner, cols, 1);
    }
}

/* c += a^T b, with a (rows, inner) and b (rows, cols). */
ON_ITS_OWN static void accumulate(const float *restrict a, const float *restrict b,
                                  float *restrict c, size rows, size inner, size cols) {
    for (size j = 0; j < cols; j += WIDE)
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

/* Floats of one point of a block; no power of two, or all points would share their cache lines. */
static size plane(size channels) { return BLOCK * channels + WIDE; }

/* B^T d for one line of six; the results are `step` vectors apart. */
static inline void line_to_points(const vec *d, vec *o, int step) {
    vec a = d[4] - 4 * d[2], b = d[3] - 4 * d[1], c = d[4] - d[2], e = 2 * (d[3] - d[1]);
    o[0] = 4 * d[0] - 5 * d[2] + d[4];
    o[step] = a + b;
    o[2 * step] = a - b;
    o[3 * step] = c + e;
    o[4 * step] = c - e;
    o[5 * step] = 4 * d[1] - 5 * d[3] + d[5];
}

/* A^T m for one line of six points. */
static inline void points_to_line(const vec *m, vec *o, int step) {
    vec sum = m[1] + m[2], difference = m[1] - m[2];
    vec sum2 = m[3] + m[4], difference2 = m[3] - m[4];
    o[0] = m[0] + sum + sum2;
    o[step] = difference + 2 * difference2;
    o[2 * step] = sum + 4 * sum2;
    o[3 * step] = difference + 8 * difference2 + m[5];
}

/* A g for one line of four: the adjoint of the above. */
static inline void gradient_to_points(const vec *g, vec *o, int step) {
    vec even = g[0] + g[2], odd = g[1] + g[3], even2 = g[0] + 4 * g[2], odd2 = 2 * g[1] + 8 * g[3];
    o[0] = g[0];
    o[step] = even + odd;
    o[2 * step] = even - odd;
    o[3 * step] = even2 + odd2;
    o[4 * step] = even2 - odd2;
    o[5 * step] = g[3];
}

/* G w for one line of three. */
static inline void kernel_to_points(const vec *w, vec *o, int step) {
    vec even = w[0] + w[2], even4 = w[0] + 4 * w[2], odd2 = 2 * w[1];
    o[0] = w[0] / 4;
    o[step] = (even + w[1]) / -6;
    o[2 * step] = (even - w[1]) / -6;
    o[3 * step] = (even4 + odd2) / 24;
    o[4 * step] = (even4 - odd2) / 24;
    o[5 * step] = w[2];
}

/* G^T m for one line of six points. */
static inline void points_to_kernel(const vec *m, vec *o, int step) {
    vec sum = (m[1] + m[2]) / 6, sum2 = (m[3] + m[4]) / 24;
    o[0] = m[0] / 4 - sum + sum2;
    o[step] = (m[2] - m[1]) / 6 + (m[3] - m[4]) / 12;
    o[2 * step] = 4 * sum2 - sum + m[5];
}

/* n images of pixels that are `step` floats apart. */
typedef struct {
    const float *pixels;
    size step, height, width;
} Images;

/* A tile: its image, and where its 4x4 outputs begin. */
typedef struct {
    size image, row, column;
} Tile;

static size tiles_of(size height, size width) { return ((height + 3) / 4) * ((width + 3) / 4); }

static Tile tile_at(size index, size height, size width) {
    size wide = (width + 3) / 4, in_image = index % tiles_of(height, width);
    return (Tile){index / tiles_of(height, width), 4 * (in_image / wide), 4 * (in_image % wide)};
}

/* Where the pixels of a square are that begins `border` before the tile's outputs; those outside
   the image are at `zeros`. */
static void find_pixels(Images x, Tile tile, int edge, int border, const float *zeros,
                        const float **pixels) {
    const float *image = x.pixels + tile.image * x.height * x.width * x.step;
    for (int a = 0; a < edge; a++)
        for (int b = 0; b < edge; b++) {
            size i = tile.row + a - border, j = tile.column + b - border;
            int inside = i >= 0 && i < x.height && j >= 0 && j < x.width;
            pixels[edge * a + b] = inside ? image + (i * x.width + j) * x.step : zeros;
        }
}

/* B^T d B for a tile. */
static void transform_tile(const float **pixels, size channels, float *v) {
    for (size c = 0; c < channels; c += LANES) {
        vec half[POINTS], full[POINTS];
        for (int i = 0; i < 6; i++) {
            vec d[6];
            for (int j = 0; j < 6; j++) d[j] = load(pixels[6 * i + j] + c);
            line_to_points(d, half + i, 6);
        }
        for (int j = 0; j < 6; j++) line_to_points(half + 6 * j, full + j, 6);
        for (int i = 0; i < POINTS; i++) store(v + i * plane(channels) + c, full[i]);
    }
}

/* A g A^T for 4x4 gradients. */
static void transform_gradient(const float **pixels, size channels, float *m) {
    for (size k = 0; k < channels; k += LANES) {
        vec half[24], full[POINTS];
        for (int i = 0; i < 4; i++) {
            vec g[4];
            for (int j = 0; j < 4; j++) g[j] = load(pixels[4 * i + j] + k);
            gradient_to_points(g, half + i, 4);
        }
        for (int j = 0; j < 6; j++) gradient_to_points(half + 4 * j, full + j, 6);
        for (int i = 0; i < POINTS; i++) store(m + i * plane(channels) + k, full[i]);
    }
}

/* A^T m A + bias + rest, as far as the image goes, to y; its lines are `row` floats apart. */
static void transform_back(const float *m, size channels, const float *bias, const float *rest,
                           float *y, size row, size height, size width) {
    for (size k = 0; k < channels; k += LANES) {
        vec half[24], shift = bias ? load(bias + k) : (vec){0};
        for (int i = 0; i < 6; i++) {
            vec points[6];
            for (int j = 0; j < 6; j++) points[j] = load(m + (6 * i + j) * plane(channels) + k);
            points_to_line(points, half + i, 6);
        }
        for (int j = 0; j < width; j++) {
            vec line[4];
            points_to_line(half + 6 * j, line, 1);
            for (int i = 0; i < height; i++) {
                size at = i * row + j * channels + k;
                store(y + at, line[i] + shift + (rest ? load(rest + at) : (vec){0}));
            }
        }
    }
}

/* u = G w G^T: kernels w (k, c, 3, 3) at the points, (36, c, k); those of the adjoint convolution,
   mirrored and (36, k, c), if asked for. */
void kernel_points(const float *w, float *u, size k, size c, int adjoint) {
    size rows = adjoint ? k : c, cols = adjoint ? c : k;
    size down = adjoint ? 9 * c : 9, along = adjoint ? 9 : 9 * c;
    for (size a = 0; a < rows; a++)
        for (size b = 0; b < cols; b += LANES) {
            vec kernel[9], half[18], full[POINTS];
            for (int j = 0; j < 9; j++)
                for (int l = 0; l < LANES; l++)
                    kernel[j][l] = w[a * down + (b + l) * along + (adjoint ? 8 - j : j)];
            for (int i = 0; i < 3; i++) kernel_to_points(kernel + 3 * i, half + i, 3);
            for (int j = 0; j < 6; j++) kernel_to_points(half + 3 * j, full + j, 6);
            for (int i = 0; i < POINTS; i++) store(u + (i * rows + a) * cols + b, full[i]);
        }
}

/* dw (k, c, 3, 3) = G^T du G, with du (36, c, k). */
static void kernel_gradient(const float *du, float *dw, size k, size c) {
    for (size a = 0; a < c; a++)
        for (size b = 0; b < k; b += LANES) {
            vec half[18], kernel[9];
            for (int i = 0; i < 6; i++) {
                vec points[6];
                for (int j = 0; j < 6; j++) points[j] = load(du + ((6 * i + j) * c + a) * k + b);
                points_to_kernel(points, half + i, 6);
            }
            for (int j = 0; j < 3; j++) points_to_kernel(half + 6 * j, kernel + j, 3);
            for (int j = 0; j < 9; j++)
                for (int l = 0; l < LANES; l++) dw[((b + l) * c + a) * 9 + j] = kernel[j][l];
        }
}

/* y (n, h, w, k) = convolution of x (n, h, w, c), with the weights at the points, u (36, c, k),
   plus a bias and the rest of y, like y, unless these are NULL. The biases of samples are
   `bias_step` apart: k, or 0 if they share one. Returns 1 if there is no memory. */
int convolve(const float *x, size step, const float *u, const float *bias, size bias_step,
             const float *rest, float *y, size n, size c, size k, size height, size width) {
    Images images = {x, step, height, width};
    size tiles = n * tiles_of(height, width);
    float *zeros = calloc(c, sizeof(float));
    float *v = malloc(POINTS * plane(c) * sizeof(float));
    float *m = malloc(POINTS * plane(k) * sizeof(float));
    int failed = !zeros || !v || !m;
    for (size start = 0; start < tiles && !failed; start += BLOCK) {
        size count = min(BLOCK, tiles - start);
        for (size t = 0; t < count; t++) {
            const float *pixels[POINTS];
            find_pixels(images, tile_at(start + t, height, width), 6, 1, zeros, pixels);
            transform_tile(pixels, c, v + t * c);
        }
        for (int p = 0; p < POINTS; p++)
            multiply(v + p * plane(c), u + p * c * k, m + p * plane(k), count, c, k);
        for (size t = 0; t < count; t++) {
            Tile tile = tile_at(start + t, height, width);
            size at = ((tile.image * height + tile.row) * width + tile.column) * k;
            transform_back(m + t * k, k, bias ? bias + tile.image * bias_step : NULL,
                           rest ? rest + at : NULL, y + at, width * k, min(4, height - tile.row),
                           min(4, width - tile.column));
        }
    }
    free(zeros), free(v), free(m);
    return failed;
}

/* dw (k, c, 3, 3) for inputs x (n, h, w, c) and gradients g (n, h, w, k). Returns 1 if there is no
   memory. */
int weight_gradient(const float *x, size step_x, const float *g, size step_g, float *dw, size n,
                    size c, size k, size height, size width) {
    Images images = {x, step_x, height, width}, gradients = {g, step_g, height, width};
    size tiles = n * tiles_of(height, width);
    float *zeros = calloc(c + k, sizeof(float));
    float *v = malloc(POINTS * plane(c) * sizeof(float));
    float *m = malloc(POINTS * plane(k) * sizeof(float));
    float *du = calloc(POINTS * c * k, sizeof(float));
    int failed = !zeros || !v || !m || !du;
    for (size start = 0; start < tiles && !failed; start += BLOCK) {
        size count = min(BLOCK, tiles - start);
        for (size t = 0; t < count; t++) {
            Tile tile = tile_at(start + t, height, width);
            const float *pixels[POINTS];
            find_pixels(images, tile, 6, 1, zeros, pixels);
            transform_tile(pixels, c, v + t * c);
            find_pixels(gradients, tile, 4, 0, zeros, pixels);
            transform_gradient(pixels, k, m + t * k);
        }
        for (int p = 0; p < POINTS; p++)
            accumulate(v + p * plane(c), m + p * plane(k), du + p * c * k, count, c, k);
    }
    if (!failed) kernel_gradient(du, dw, k, c);
    free(zeros), free(v), free(m), free(du);
    return failed;
}

/* x, or the bound that it is beyond; NaN stays. */
static inline vec clamp(vec x, float bound) {
#ifdef __AVX__
    return (vec)_mm256_max_ps((__m256)all(-bound), _mm256_min_ps((__m256)all(bound), (__m256)x));
#else
    ints above = x > bound, below = x < -bound;
    return (vec)((above & (ints)all(bound)) | (below & (ints)all(-bound)) |
                 (~above & ~below & (ints)x));
#endif
}

/* exp for |x| < 87, beyond which it stays. */
static inline vec exponential(vec x) {
    x = clamp(x, 87);
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

/* Replaces each number by the sum of its group over `count`. */
static void average_in_groups(float *sums, size channels, size in_group, float count) {
    for (size c = 0; c < channels; c += in_group) {
        float sum = 0;
        for (size i = 0; i < in_group; i++) sum += sums[c + i];
        for (size i = 0; i < in_group; i++) sums[c + i] = sum / count;
    }
}

/* y = silu(z), z = weight * (x - mean) * scale + bias with the moments of every group.
   x, y (n, pixels, channels); moments (n, 2, channels): mean and 1 / deviation, for the gradient. */
void norm_silu(const float *x, const float *weight, const float *bias, float *y, float *moments,
               size n, size pixels, size channels, size groups, float epsilon) {
    size in_group = channels / groups, length = pixels * channels;
    float count = in_group * pixels;
    for (size e = 0; e < n; e++, x += length, y += length, moments += 2 * channels) {
        float *mean = moments, *scale = moments + channels;
        for (size c = 0; c < channels; c += WIDE) {
            vec sum[2] = {{0}};
            for (size i = c; i < length;) { /* short sums first: rounding errors stay small */
                vec part[2] = {{0}};
                size stop = min(length, i + BLOCK * channels);
                for (; i < stop; i += channels)
                    for (int s = 0; s < 2; s++) part[s] += load(x + i + s * LANES);
                for (int s = 0; s < 2; s++) sum[s] += part[s];
            }
            for (int s = 0; s < 2; s++) store(mean + c + s * LANES, sum[s]);
        }
        average_in_groups(mean, channels, in_group, count);
        for (size c = 0; c < channels; c += WIDE) {
            vec sum[2] = {{0}}, centre[2] = {load(mean + c), load(mean + c + LANES)};
            for (size i = c; i < length;) {
                vec part[2] = {{0}};
                size stop = min(length, i + BLOCK * channels);
                for (; i < stop; i += channels)
                    for (int s = 0; s < 2; s++) {
                        vec d = load(x + i + s * LANES) - centre[s];
                        part[s] += d * d;
                    }
                for (int s = 0; s < 2; s++) sum[s] += part[s];
            }
            for (int s = 0; s < 2; s++) store(scale + c + s * LANES, sum[s]);
        }
        average_in_groups(scale, channels, in_group, count);
        for (size c = 0; c < channels; c++) scale[c] = 1 / sqrtf(scale[c] + epsilon);
        for (size c = 0; c < channels; c += WIDE) {
            vec a[2], b[2];
            for (int s = 0; s < 2; s++) {
                size at = c + s * LANES;
                a[s] = load(scale + at) * load(weight + at);
                b[s] = load(bias + at) - load(mean + at) * a[s];
            }
            for (size i = c; i < length; i += channels)
                for (int s = 0; s < 2; s++) {
                    vec z = a[s] * load(x + i + s * LANES) + b[s];
                    store(y + i + s * LANES, z * sigmoid(z));
                }
        }
    }
}

/* The gradients of x (to dx), and added to those of weight and bias (dw, db). Returns 1 if there is
   no memory. */
int norm_silu_gradient(const float *dy, const float *x, const float *weight, const float *bias,
                       const float *moments, float *dx, float *dw, float *db, size n, size pixels,
                       size channels, size groups) {
    size in_group = channels / groups, length = pixels * channels;
    float count = in_group * pixels;
    float *along_one = malloc(2 * channels * sizeof(float)); /* the gradient of the normalised x */
    if (!along_one) return 1;
    float *along_x = along_one + channels;
    for (size e = 0; e < n; e++) {
        const float *mean = moments, *scale = moments + channels;
        for (size c = 0; c < channels; c += LANES) {
            vec centre = load(mean + c), factor = load(scale + c), w = load(weight + c);
            vec shift = load(bias + c), sum = {0}, with_x = {0};
            for (size i = c; i < length;) {
                vec part = {0}, part_with_x = {0};
                size stop = min(length, i + BLOCK * channels);
                for (; i < stop; i += channels) {
                    vec normal = (load(x + i) - centre) * factor, z = w * normal + shift;
                    vec s = sigmoid(z), dz = load(dy + i) * s * (1 + z * (1 - s));
                    part += dz;
                    part_with_x += dz * normal;
                    store(dx + i, dz);
                }
                sum += part, with_x += part_with_x;
            }
            store(db + c, load(db + c) + sum), store(dw + c, load(dw + c) + with_x);
            store(along_one + c, w * sum), store(along_x + c, w * with_x);
        }
        average_in_groups(along_one, channels, in_group, count);
        average_in_groups(along_x, channels, in_group, count);
        for (size c = 0; c < channels; c += LANES) {
            vec centre = load(mean + c), factor = load(scale + c), w = load(weight + c);
            vec constant = load(along_one + c), slope = load(along_x + c);
            for (size i = c; i < length; i += channels) {
                vec normal = (load(x + i) - centre) * factor;
                store(dx + i, factor * (w * load(dx + i) - constant - normal * slope));
            }
        }
        x += length, dy += length, dx += length, moments += 2 * channels;
    }
    free(along_one);
    return 0;
}
