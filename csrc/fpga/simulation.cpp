// SPDX-License-Identifier: MIT
// The Verilated RTL as a transport: a shared library for each set, opened at run time, so that the
// build needs no Verilator.
#include <dlfcn.h>

#include "core/check.h"
#include "fpga/array.h"
#include "fpga/transport.h"

namespace transformer_kernels::fpga {
namespace {

// The C ABI of fpga/sim/array_simulation.h.
using Open = void* (*)();
using Run = int (*)(void* simulation, const std::uint8_t* command, const std::uint8_t* in,
                    std::uint64_t in_bytes, std::uint8_t* out, std::uint64_t out_bytes,
                    std::uint64_t* cycles);
using Close = void (*)(void* simulation);

class Library {
 public:
  explicit Library(const std::string& path)
      : handle_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    check_value(handle_ != nullptr, "fpga: ", path,
                " cannot be loaded, expected a simulation that"
                " `make fpga` built (",
                handle_ == nullptr ? ::dlerror() : "", ")");
  }
  ~Library() { ::dlclose(handle_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <class Function>
  Function find(const char* name) const {
    void* const found = ::dlsym(handle_, name);
    check_value(found != nullptr, "fpga: the simulation has no ", name, ", expected one of ours");
    return reinterpret_cast<Function>(found);
  }

 private:
  void* handle_;
};

class SimulationTransport : public Transport {
 public:
  explicit SimulationTransport(const std::string& path)
      : library_(path),
        run_(library_.find<Run>("tfk_fpga_run")),
        close_(library_.find<Close>("tfk_fpga_close")),
        simulation_(library_.find<Open>("tfk_fpga_open")()) {}
  ~SimulationTransport() override { close_(simulation_); }

  std::uint64_t run(const Command& command, std::span<const std::uint8_t> in,
                    std::span<std::uint8_t> out) override {
    std::uint64_t cycles = 0;
    const int failed = run_(simulation_, encode(command).data(), in.data(), in.size(), out.data(),
                            out.size(), &cycles);
    if (failed != 0) throw Error(Error::Kind::kRuntime, "fpga: the simulation did not finish");
    return cycles;
  }

 private:
  Library library_;
  Run run_;
  Close close_;
  void* simulation_;
};

}  // namespace

std::unique_ptr<Transport> simulation_transport(std::string_view set, const std::string& folder) {
  find_set(set);
  return std::make_unique<SimulationTransport>(concat(folder, "/libtfk_fpga_", set, ".so"));
}

}  // namespace transformer_kernels::fpga
