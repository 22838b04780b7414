// SPDX-License-Identifier: MIT
// Declarations that the transports share.
#pragma once

#include <string_view>

#include "fpga/array.h"
#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::fpga {

// The set of this name. Throws Error where there is none.
const ParameterSet& find_set(std::string_view name);

}  // namespace transformer_kernels::fpga
