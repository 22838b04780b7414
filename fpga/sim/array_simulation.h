/* SPDX-License-Identifier: MIT
 * The simulated array of one parameter set behind a C ABI: build/fpga/lib/libtfk_fpga_<set>.so. */
#ifndef TFK_FPGA_ARRAY_SIMULATION_H_
#define TFK_FPGA_ARRAY_SIMULATION_H_

#include <stdint.h>

#define TFK_FPGA_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* "r4c16d64n1024" */
TFK_FPGA_API const char* tfk_fpga_set(void);

/* An array after reset, its buffers empty; null without memory. */
TFK_FPGA_API void* tfk_fpga_open(void);
TFK_FPGA_API void tfk_fpga_close(void* simulation);

/* Carries one command of 16 bytes out, with streams as csrc/fpga/array.h says, that never stall.
 * Writes the cycles that the array was busy. 0; or 1 where array and streams disagree about the
 * end, after which the simulation is of no more use. */
TFK_FPGA_API int tfk_fpga_run(void* simulation, const uint8_t* command, const uint8_t* in,
                              uint64_t in_bytes, uint8_t* out, uint64_t out_bytes,
                              uint64_t* cycles);

#ifdef __cplusplus
}
#endif

#endif /* TFK_FPGA_ARRAY_SIMULATION_H_ */
