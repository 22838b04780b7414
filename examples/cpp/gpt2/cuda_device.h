// SPDX-License-Identifier: MIT
#pragma once

#include "device.h"

namespace gpt2 {

// The first CUDA device that the driver shows. Throws NoDevice.
Device& cuda_device();

}  // namespace gpt2
