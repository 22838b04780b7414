// SPDX-License-Identifier: MIT
// Opens transports by name, and makes the model a transport.
#include "fpga/transport.h"

#include <cstdlib>

#include "core/check.h"
#include "fpga/model.h"
#include "fpga/stream.h"

namespace transformer_kernels::fpga {
namespace {

class ModelTransport : public Transport {
 public:
  explicit ModelTransport(const ParameterSet& set) : model_(set) {}

  std::uint64_t run(const Command& command, std::span<const std::uint8_t> in,
                    std::span<std::uint8_t> out) override {
    return model_.run(command, in, out);
  }

 private:
  Model model_;
};

}  // namespace

Transport::~Transport() = default;

std::unique_ptr<Transport> model_transport(std::string_view set) {
  return std::make_unique<ModelTransport>(find_set(set));
}

std::unique_ptr<Transport> open_transport(std::string_view set, std::string_view text) {
  constexpr std::string_view kStream = "stream:";
  if (text == "model") return model_transport(set);
  if (text == "simulation") {
    const char* const folder = std::getenv("TFK_FPGA_SIMULATION");
    check_value(folder != nullptr,
                "fpga: TFK_FPGA_SIMULATION is not set, expected the folder of"
                " the simulations that `make fpga` builds");
    return simulation_transport(set, folder);
  }
  check_value(text.starts_with(kStream), "fpga: transport is '", text,
              "', expected model, simulation or stream:PATH");
  return open_stream(std::string(text.substr(kStream.size())));
}

}  // namespace transformer_kernels::fpga
