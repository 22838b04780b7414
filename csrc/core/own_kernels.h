// SPDX-License-Identifier: MIT
// Leave to pass over what was measured about kernels.
#pragma once

#include "transformer_kernels/api.h"

namespace transformer_kernels {

// While one lives, this thread's ops run the library's own kernels where these can, also where
// another library's are known to be faster: for callers who have chosen already, as Python has.
class TFK_API OwnKernels {
 public:
  OwnKernels();
  ~OwnKernels();
  OwnKernels(const OwnKernels&) = delete;
  OwnKernels& operator=(const OwnKernels&) = delete;

  static bool are_wanted();
};

}  // namespace transformer_kernels
