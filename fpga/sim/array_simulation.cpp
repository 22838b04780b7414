// SPDX-License-Identifier: MIT
#include "array_simulation.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>

#include "simulated_array.h"

namespace fpga = transformer_kernels::fpga;

const char* tfk_fpga_set() {
  static const std::string name = fpga::name_of(fpga::kSimulatedSet);
  return name.c_str();
}

void* tfk_fpga_open() { return new (std::nothrow) fpga::SimulatedArray; }

void tfk_fpga_close(void* simulation) { delete static_cast<fpga::SimulatedArray*>(simulation); }

int tfk_fpga_run(void* simulation, const uint8_t* command, const uint8_t* in, uint64_t in_bytes,
                 uint8_t* out, uint64_t out_bytes, uint64_t* cycles) {
  fpga::CommandBytes bytes;
  std::copy_n(command, bytes.size(), bytes.begin());
  try {
    auto& array = *static_cast<fpga::SimulatedArray*>(simulation);
    *cycles = array.run(bytes, {in, in_bytes}, {out, out_bytes});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
