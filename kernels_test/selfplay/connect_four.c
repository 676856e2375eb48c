/* SPDX-License-Identifier: Apache-2.0
 *
 * Connect Four, as a native simulator: seven columns of six, whoever has four in a row first wins. It knows how long its
 * functions have taken. Boards are as John Tromp's: a column is seven bits, of which the uppermost stays empty.
 */
#include <stdint.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define COLUMNS 7
#define ROWS 6
#define HEIGHT (ROWS + 1)

enum { GOES_ON = 0, WON = 1, DRAWN = 2 };

struct position {
    uint64_t mine, all; /* stones of who is to move, and of both */
};

static uint64_t calls;
static int64_t spent_ns;

static int64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void account(int64_t since)
{
    calls++;
    spent_ns += now() - since;
}

static uint64_t bottom(int column)
{
    return (uint64_t)1 << (column * HEIGHT);
}

static uint32_t legal(const struct position *at)
{
    uint32_t columns = 0;

    for (int column = 0; column < COLUMNS; column++)
        if (!(at->all & bottom(column) << (ROWS - 1)))
            columns |= 1u << column;
    return columns;
}

static int has_four(uint64_t stones)
{
    static const int steps[] = {1, HEIGHT - 1, HEIGHT, HEIGHT + 1};

    for (unsigned int i = 0; i < sizeof steps / sizeof *steps; i++) {
        uint64_t pairs = stones & stones >> steps[i];

        if (pairs & pairs >> 2 * steps[i])
            return 1;
    }
    return 0;
}

/* The column is a legal one. */
static int play(struct position *at, int column)
{
    uint64_t before = at->all, mine;

    at->all |= before + bottom(column);
    mine = at->mine | (at->all ^ before);
    at->mine = at->all ^ mine; /* the other one's turn */
    return has_four(mine) ? WON : legal(at) ? GOES_ON : DRAWN;
}

/* Plays these columns one after another, as long as the game goes on; how it stands then: whoever moved last has won, it
 * is drawn, or it goes on. -1: a column is full. */
API int c4_play(struct position *at, const uint8_t *columns, int count)
{
    int64_t since = now();
    int state = GOES_ON;

    for (int i = 0; i < count && state == GOES_ON; i++)
        state = legal(at) >> columns[i] & 1 ? play(at, columns[i]) : -1;
    account(since);
    return state;
}

/* The columns that may be played: a bit each. */
API uint32_t c4_legal(const struct position *at)
{
    int64_t since = now();
    uint32_t columns = legal(at);

    account(since);
    return columns;
}

/* What a network sees: own stones, and the other one's, as 2 * 6 * 7 numbers. */
API void c4_features(const struct position *at, float *out)
{
    int64_t since = now();

    for (int side = 0; side < 2; side++)
        for (int row = 0; row < ROWS; row++)
            for (int column = 0; column < COLUMNS; column++) {
                uint64_t stones = side ? at->mine ^ at->all : at->mine;

                *out++ = (float)(stones >> (column * HEIGHT + row) & 1);
            }
    account(since);
}

/* Plays games at random to their ends: how many who is to move has won more than lost. */
API int c4_playouts(const struct position *at, uint64_t *seed, int count)
{
    int64_t since = now();
    int sum = 0;

    for (int i = 0; i < count; i++) {
        struct position game = *at;
        int state = GOES_ON, mover = 1;

        while (state == GOES_ON) {
            uint32_t columns = legal(&game);
            int column;

            do {
                *seed ^= *seed << 13; /* xorshift */
                *seed ^= *seed >> 7;
                *seed ^= *seed << 17;
                column = (int)((*seed >> 32) % COLUMNS);
            } while (!(columns >> column & 1));
            state = play(&game, column);
            mover = -mover;
        }
        sum -= state == WON ? mover : 0; /* who moved last has won */
    }
    account(since);
    return sum;
}

/* How often the functions above were called, and how long they took. */
API void c4_truth(uint64_t *out_calls, int64_t *out_ns)
{
    *out_calls = calls;
    *out_ns = spent_ns;
}
