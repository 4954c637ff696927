/* Uniform numbers of a network's weights, as `drawing.py` defines them; `uniform.py` calls this.

   Words of 64 bits by SFC64 (Doty-Humphrey, PractRand), bit for bit those of NumPy's generator; four
   odd numbers of 16 bits from each, the lowest bits first, as floats times a scale. The words of a
   block and the floats they become stay in the nearest cache, and the second loop is one of
   vectors: the time is that of the generator, whose every step needs the step before it. */

#include <stdint.h>

enum { WORDS = 512 };

static inline uint64_t next(uint64_t s[4]) {
    uint64_t word = s[0] + s[1] + s[3]++;
    s[0] = s[1] ^ (s[1] >> 11);
    s[1] = s[2] + (s[2] << 3);
    s[2] = ((s[2] << 24) | (s[2] >> 40)) + word;
    return word;
}

/* Leave `count` words out. */
void skip_words(uint64_t *state, int64_t count) {
    uint64_t s[4] = {state[0], state[1], state[2], state[3]};
    for (int64_t i = 0; i < count; i++) next(s);
    for (int i = 0; i < 4; i++) state[i] = s[i];
}

/* `count` numbers, from number `skip` (0 to 3) of the next word on. */
void draw_uniform(uint64_t *state, int64_t skip, int64_t count, float scale, float *out) {
    uint64_t s[4] = {state[0], state[1], state[2], state[3]};
    union {
        uint64_t words[WORDS];
        int16_t numbers[4 * WORDS];
    } block;
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
    for (int i = 0; i < 4; i++) state[i] = s[i];
}
