// SPDX-License-Identifier: MIT
// The byte stream to a board: a command's 16 bytes and its input one way, its output and the busy
// cycles in 4 bytes the other (docs/fpga/board.md).
#pragma once

#include <memory>
#include <string>

#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::fpga {

// Opens a character device, put into raw mode where it is a terminal, or a Unix socket.
std::unique_ptr<Transport> open_stream(const std::string& path);

}  // namespace transformer_kernels::fpga
