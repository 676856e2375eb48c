/* SPDX-License-Identifier: Apache-2.0
 *
 * libtruth_simulator_storm.so: one boundary function that does almost nothing.
 */
#include <stdint.h>

__attribute__((visibility("default"))) uint64_t storm_step(uint64_t state);

uint64_t storm_step(uint64_t state)
{
    return state * 6364136223846793005u + 1442695040888963407u;
}
