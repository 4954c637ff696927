/* Random numbers of a network's weights, as `geometry/drawing.py` defines them; `random.py` calls this.

   Words of 64 bits by SFC64 (Doty-Humphrey, PractRand), bit for bit those of NumPy's generator.
   Uniform: four odd numbers of 16 bits from each word, the lowest bits first, as floats times a
   scale. The words of a block and the floats they become stay in the nearest cache, and the second
   loop is one of vectors: the time is that of the generator, whose every step needs the step before
   it. Normal: the ziggurat of Marsaglia and Tsang with 256 layers of equal area, bit for bit
   NumPy's; for that no product and sum may be rounded as one. */

#pragma STDC FP_CONTRACT OFF
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#endif

#include <math.h>
#include <stdint.h>

enum { WORDS = 512 };

static inline uint64_t next(uint64_t s[4]) {
    uint64_t word = s[0] + s[1] + s[3]++;
    s[0] = s[1] ^ (s[1] >> 11);
    s[1] = s[2] + (s[2] << 3);
    s[2] = ((s[2] << 24) | (s[2] >> 40)) + word;
    return word;
}

/* The states at `count` places (words, ascending), of which the first is given. */
void survey(const int64_t *places, int64_t count, uint64_t *states) {
    uint64_t s[4] = {states[0], states[1], states[2], states[3]};
    for (int64_t i = 1; i < count; i++) {
        for (int64_t word = places[i - 1]; word < places[i]; word++) next(s);
        for (int j = 0; j < 4; j++) states[4 * i + j] = s[j];
    }
}

/* `count` numbers, from number `skip` on of those that a state gives. */
void draw_uniform(const uint64_t *state, int64_t skip, int64_t count, float scale, float *out) {
    uint64_t s[4] = {state[0], state[1], state[2], state[3]};
    union {
        uint64_t words[WORDS];
        int16_t numbers[4 * WORDS];
    } block;
    for (; skip >= 4; skip -= 4) next(s);
    while (count > 0) {
        int64_t words = (count + skip + 3) / 4;
        if (words > WORDS) words = WORDS;
        for (int64_t i = 0; i < words; i++) block.words[i] = next(s);
        int64_t made = 4 * words - skip;
        if (made > count) made = count;
        const int16_t *numbers = block.numbers + skip;
        for (int64_t i = 0; i < made; i++) out[i] = (float)(numbers[i] | 1) * scale;
        out += made;
        count -= made;
        skip = 0;
    }
}

static const double EDGE = 3.6541528853610088; /* where the tail begins */
static const double AREA = 0.00492867323399;   /* of a layer, under exp(-x^2 / 2) */
static const double SIZES = 8388608.0;         /* 2^23 numbers in a layer's width */

static uint32_t inside[256]; /* sizes below it are under the curve */
static float width[256], height[256];

static double bell(double x) { return exp(-0.5 * x * x); }

/* Make the tables, before anything else. */
void prepare_normal(void) {
    double x = EDGE, base = AREA / bell(EDGE);
    width[0] = (float)(base / SIZES);
    height[0] = 1.0f;
    inside[0] = (uint32_t)(EDGE / base * SIZES + 0.5);
    inside[1] = 0;
    for (int i = 255; i >= 1; i--) {
        width[i] = (float)(x / SIZES);
        height[i] = (float)bell(x);
        double below = x;
        x = sqrt(-2.0 * log(AREA / x + bell(x)));
        if (i > 1) inside[i] = (uint32_t)(x / below * SIZES + 0.5);
    }
}

/* Halves of words, the lower one first. */
typedef struct {
    uint64_t s[4];
    uint32_t half, is_kept;
} Halves;

static inline uint32_t next_half(Halves *h) {
    if (h->is_kept) {
        h->is_kept = 0;
        return h->half;
    }
    uint64_t word = next(h->s);
    h->half = (uint32_t)(word >> 32);
    h->is_kept = 1;
    return (uint32_t)word;
}

static inline float next_unit(Halves *h) { return (float)(next_half(h) >> 8) * (1.0f / 16777216.0f); }

/* `count` numbers of standard deviation 1. The state: four words, a half, whether that is kept. */
void draw_normal(uint64_t *state, int64_t count, float *out) {
    Halves h = {{state[0], state[1], state[2], state[3]}, (uint32_t)state[4], (uint32_t)state[5]};
    int64_t made = 0;
    while (made < count) {
        uint32_t bits = next_half(&h), layer = bits & 255, size = bits >> 9;
        float x = (float)size * width[layer];
        if (bits & 256) x = -x;
        if (size >= inside[layer]) {
            if (layer) { /* between the curve and the layer's corner */
                float y = (height[layer - 1] - height[layer]) * next_unit(&h) + height[layer];
                if (!((double)y < exp(-0.5 * x * x))) continue;
            } else { /* in the tail */
                float beyond, other;
                do {
                    beyond = -(float)(1.0 / EDGE) * log1pf(-next_unit(&h));
                    other = -log1pf(-next_unit(&h));
                } while (!(other + other > beyond * beyond));
                x = (float)EDGE + beyond;
                if (size & 256) x = -x;
            }
        }
        out[made++] = x;
    }
    for (int i = 0; i < 4; i++) state[i] = h.s[i];
    state[4] = h.half;
    state[5] = h.is_kept;
}
