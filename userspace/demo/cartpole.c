/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator of the demo: many cart-poles at once, each integrated finely (fourth-order Runge-Kutta, SUBSTEPS per
 * control step). Needs no other library. Constants and limits are those of the classic control task (Barto, Sutton
 * and Anderson, 1983) as most RL toolkits have it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define GRAVITY 9.8
#define CART_MASS 1.0
#define POLE_MASS 0.1
#define HALF_LENGTH 0.5
#define FORCE 10.0
#define CONTROL_STEP 0.02 /* seconds */
#define SUBSTEPS 20
#define POSITION_LIMIT 2.4
#define ANGLE_LIMIT 0.20943951023931953 /* 12 degrees */
#define STEP_LIMIT 500
#define START_RANGE 0.05

#define STATE_SIZE 4 /* position, velocity, angle, angular velocity */

struct cartpole {
    double state[STATE_SIZE];
    uint64_t random;
    int32_t steps;
};

struct cartpole_world {
    int32_t count;
    struct cartpole carts[];
};

EXPORT struct cartpole_world *cartpole_create(int32_t count, uint64_t seed);
EXPORT void cartpole_destroy(struct cartpole_world *world);
EXPORT void cartpole_observe(const struct cartpole_world *world, double *states);
EXPORT void cartpole_step(struct cartpole_world *world, const int32_t *actions, double *states, double *last_states,
                          uint8_t *terminated, uint8_t *truncated);

/* Uniform in [0, 1): splitmix64. */
static double uniform(uint64_t *random)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static void reset(struct cartpole *cart)
{
    for (int i = 0; i < STATE_SIZE; i++)
        cart->state[i] = START_RANGE * (2 * uniform(&cart->random) - 1);
    cart->steps = 0;
}

/* The pole is never far from upright, where these series are exact to 12 digits. */
static double sine(double x)
{
    double y = x * x;

    return x * (1 - y / 6 * (1 - y / 20 * (1 - y / 42 * (1 - y / 72))));
}

static double cosine(double x)
{
    double y = x * x;

    return 1 - y / 2 * (1 - y / 12 * (1 - y / 30 * (1 - y / 56 * (1 - y / 90))));
}

static void derivative(const double *state, double force, double *out)
{
    const double total = CART_MASS + POLE_MASS;
    double sin_angle = sine(state[2]), cos_angle = cosine(state[2]);
    double push = (force + POLE_MASS * HALF_LENGTH * state[3] * state[3] * sin_angle) / total;

    out[0] = state[1];
    out[2] = state[3];
    out[3] = (GRAVITY * sin_angle - cos_angle * push) /
             (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos_angle * cos_angle / total));
    out[1] = push - POLE_MASS * HALF_LENGTH * out[3] * cos_angle / total;
}

static void integrate(double *state, double force, double step)
{
    double k1[STATE_SIZE], k2[STATE_SIZE], k3[STATE_SIZE], k4[STATE_SIZE], at[STATE_SIZE];

    derivative(state, force, k1);
    for (int i = 0; i < STATE_SIZE; i++)
        at[i] = state[i] + step / 2 * k1[i];
    derivative(at, force, k2);
    for (int i = 0; i < STATE_SIZE; i++)
        at[i] = state[i] + step / 2 * k2[i];
    derivative(at, force, k3);
    for (int i = 0; i < STATE_SIZE; i++)
        at[i] = state[i] + step * k3[i];
    derivative(at, force, k4);
    for (int i = 0; i < STATE_SIZE; i++)
        state[i] += step / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
}

static int fallen(const double *state)
{
    return state[0] < -POSITION_LIMIT || state[0] > POSITION_LIMIT || state[2] < -ANGLE_LIMIT || state[2] > ANGLE_LIMIT;
}

/* NULL if there is no memory. */
struct cartpole_world *cartpole_create(int32_t count, uint64_t seed)
{
    struct cartpole_world *world = count > 0 ? malloc(sizeof *world + (size_t)count * sizeof *world->carts) : NULL;

    if (!world)
        return NULL;
    world->count = count;
    for (int32_t i = 0; i < count; i++) {
        world->carts[i].random = seed + ((uint64_t)i << 32);
        reset(&world->carts[i]);
    }
    return world;
}

void cartpole_destroy(struct cartpole_world *world)
{
    free(world);
}

/* states: count x STATE_SIZE */
void cartpole_observe(const struct cartpole_world *world, double *states)
{
    for (int32_t i = 0; i < world->count; i++)
        memcpy(states + (size_t)i * STATE_SIZE, world->carts[i].state, sizeof world->carts[i].state);
}

/* One control step of all carts. actions: 0 pushes to the left, anything else to the right. A cart whose episode ends
 * (terminated: it fell; truncated: it reached STEP_LIMIT) starts a new one: last_states has where the old one ended,
 * states where each cart is now.
 */
void cartpole_step(struct cartpole_world *world, const int32_t *actions, double *states, double *last_states,
                   uint8_t *terminated, uint8_t *truncated)
{
    for (int32_t i = 0; i < world->count; i++) {
        struct cartpole *cart = &world->carts[i];
        double force = actions[i] ? FORCE : -FORCE;

        for (int substep = 0; substep < SUBSTEPS; substep++)
            integrate(cart->state, force, CONTROL_STEP / SUBSTEPS);
        cart->steps++;
        terminated[i] = (uint8_t)fallen(cart->state);
        truncated[i] = !terminated[i] && cart->steps >= STEP_LIMIT;
        memcpy(last_states + (size_t)i * STATE_SIZE, cart->state, sizeof cart->state);
        if (terminated[i] || truncated[i])
            reset(cart);
    }
    cartpole_observe(world, states);
}
