// SPDX-License-Identifier: MIT
#pragma once

namespace CLI {
class App;
}

namespace gpt2 {

void add_serve(CLI::App& app);

}  // namespace gpt2
