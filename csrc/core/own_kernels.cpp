// SPDX-License-Identifier: MIT
#include "core/own_kernels.h"

namespace transformer_kernels {
namespace {
thread_local int wanted = 0;
}

OwnKernels::OwnKernels() { ++wanted; }
OwnKernels::~OwnKernels() { --wanted; }
bool OwnKernels::are_wanted() { return wanted > 0; }

}  // namespace transformer_kernels
